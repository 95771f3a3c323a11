"""`dtk attach`: options and output. `dtk.attach` collects the evidence; `dtk diagnose` explains it."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.contract.formatting import clean, first_of, ranks_spoken
from diagnostics.contract.invocation import command, typed
from dtk.commands.watch import make_folder
from dtk.errors import DtkError, refused

if TYPE_CHECKING:
    from dtk.attach.processes import Job
    from dtk.attach.stacks import Manner

FOLDERS = Path("dtk-attach")
MOST_S = 45.0  # Time between the first round and the last.
SLURM_S = 300.0  # Timeout for the hosts of a Slurm job.
VALUES = {"most_s": MOST_S, "folders": FOLDERS}


def run(arguments: argparse.Namespace) -> int:
    """Collect evidence and diagnose it; DtkError if there is no such job here, or an option cannot be used."""
    if (arguments.rounds - 1) * arguments.every_s > MOST_S:
        raise DtkError(f"{arguments.rounds} rounds {arguments.every_s:g} s apart exceed {MOST_S:g} s", fix="use fewer")
    if arguments.slurm is not None:
        return _slurm(arguments)
    from dtk.attach import processes

    jobs = processes.find(arguments.pids)
    if not jobs:
        pids = arguments.pids
        what = f"process {pids[0]} is not a rank and has started none" if pids else "no rank runs on this host"
        why = "no Python process that you may inspect has RANK and WORLD_SIZE in its environment"
        fix = 'run it on the host of the job; for the job of another user: sudo env "PATH=$PATH" dtk attach'
        raise DtkError(what, why, fix)
    if arguments.list:
        sys.stdout.write("".join(f"{_line(ranks)}\n" for ranks in jobs))
        return 0
    if len(jobs) > 1:
        fix = f"name a process of one: {command('attach', str(jobs[0][min(jobs[0])].pid))}"
        raise DtkError(f"{len(jobs)} jobs run here: {'; '.join(map(_line, jobs[:4]))}", fix=fix)
    from dtk.attach.collect import collect
    from dtk.console.progress import Progress

    ranks = jobs[0]
    first = f"process/rank_{min(ranks):05d}.json"  # Other nodes write into the same folder.
    folder = make_folder(arguments.folder, FOLDERS, first, 0o700)
    _say(_line(ranks))
    manner: Manner = "nonblocking" if arguments.nonblocking else "python" if arguments.no_native else "native"
    refusal = refused(f"cannot write to {folder}", "choose another --folder")
    with Progress(terminal_only=True) as progress, refusal:
        notes = collect(ranks, folder, arguments.rounds, arguments.every_s, manner, progress.say)
    for note in notes:
        _say(note)
    return _diagnose(arguments, folder)


def _diagnose(arguments: argparse.Namespace, folder: Path) -> int:
    from dtk.commands.main import make_parser

    if arguments.collect:
        _say(f"collected in {typed(folder)}")
        return 0
    parser, _ = make_parser(["diagnose"])
    words = ["diagnose", str(folder), *["--json"] * arguments.json, *["-v"] * arguments.verbose]
    diagnosis = parser.parse_args(words)
    code: int = diagnosis.command(diagnosis)
    _say(f"to print the report again: {command('diagnose', typed(folder))}")
    return code


def _slurm(arguments: argparse.Namespace) -> int:
    """Let each host of a Slurm job collect into one shared folder."""
    if shutil.which("srun") is None:
        raise DtkError("there is no srun on this host", fix="run it where jobs are submitted, or see --collect")
    folder = make_folder(arguments.folder, FOLDERS, "process", 0o700)
    inner = [sys.executable, "-m", "dtk", "attach", "--collect", "--folder", str(folder)]
    inner += ["--rounds", str(arguments.rounds), "--every-s", str(arguments.every_s)]
    inner += ["--no-native"] * arguments.no_native + ["--nonblocking"] * arguments.nonblocking
    argv = ["srun", f"--jobid={arguments.slurm}", "--overlap", "--ntasks-per-node=1", *inner]
    try:
        done = subprocess.run(argv, timeout=SLURM_S, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except subprocess.TimeoutExpired as error:
        raise DtkError(f"srun did not answer within {SLURM_S:g} s", fix="try --collect on one of its hosts") from error
    if not any(folder.iterdir()):
        why = f"srun ended with exit code {done.returncode}"
        fix = "squeue --me lists your jobs; --folder must be on a disk that all hosts share"
        raise DtkError(f"no host of job {arguments.slurm} wrote to {folder}", why, fix)
    return _diagnose(arguments, folder)


def _line(ranks: "Job") -> str:
    """Return `ranks 0-3 of 4 (pids 11 12 13 14): python train.py`."""
    first = ranks[min(ranks)]
    pids = first_of([ranks[rank].pid for rank in sorted(ranks)], separator=" ")
    return f"{ranks_spoken(tuple(sorted(ranks)))} of {first.world_size} (pids {pids}): {clean(first.command)[:100]}"


def _say(text: str) -> None:
    """Print one line on standard error; standard output is for the report."""
    print(f"dtk attach: {clean(text)}", file=sys.stderr, flush=True)
