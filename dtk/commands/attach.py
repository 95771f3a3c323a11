"""`dtk attach`: options and output. `dtk.attach` collects the evidence; `dtk diagnose` explains it."""

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.contract.formatting import clean, command, first_of, ranks_spoken, typed
from dtk.commands.watch import make_folder
from dtk.errors import Errors, refused

if TYPE_CHECKING:
    from dtk.attach.processes import Job
    from dtk.attach.stacks import Manner

_errors = Errors(__file__)
FOLDERS = Path("dtk-attach")
MOST_S = 45.0  # Time between the first round and the last.
REMOTE_S = 300.0  # Timeout for other hosts.
VALUES = {"most_s": MOST_S, "folders": FOLDERS}


def run(arguments: argparse.Namespace) -> int:
    """Collect evidence and diagnose it; DtkError if there is no such job here, or an option cannot be used."""
    rounds, every_s = arguments.rounds, arguments.every_s
    _errors.refuse({"too_long": (rounds - 1) * every_s > MOST_S}, rounds=rounds, every_s=every_s, most_s=MOST_S)
    if arguments.slurm is not None or arguments.hosts is not None:
        return _elsewhere(arguments)
    from dtk.attach import processes

    jobs = processes.find(arguments.pids)
    if not jobs:
        raise _errors("no_rank" if arguments.pids else "no_job", pid=next(iter(arguments.pids), None))
    if arguments.list:
        sys.stdout.write("".join(f"{_line(ranks)}\n" for ranks in jobs))
        return 0
    if len(jobs) > 1:
        example = command("attach", str(jobs[0][min(jobs[0])].pid))
        raise _errors("several", count=len(jobs), jobs="; ".join(map(_line, jobs[:4])), example=example)
    from dtk.attach.collect import collect
    from dtk.console.progress import Progress

    ranks = jobs[0]
    first = f"process/rank_{min(ranks):05d}.json"  # Other nodes write into the same folder.
    folder = make_folder(arguments.folder, FOLDERS, first, 0o700)
    _print_message(_line(ranks))
    manner: Manner = "nonblocking" if arguments.nonblocking else "python" if arguments.no_native else "native"
    refusal = refused(f"cannot write to {folder}", "choose another --folder")
    with Progress(terminal_only=True) as progress, refusal:
        notes = collect(ranks, folder, arguments.rounds, arguments.every_s, manner, progress.show)
    for note in notes:
        _print_message(note)
    return _diagnose(arguments, folder)


def _diagnose(arguments: argparse.Namespace, folder: Path) -> int:
    from dtk.commands.main import make_parser

    if arguments.collect:
        _print_message(f"collected in {typed(folder)}")
        return 0
    parser, _ = make_parser(["diagnose"])
    words = ["diagnose", str(folder), *["--json"] * arguments.json, *["-v"] * arguments.verbose]
    diagnosis = parser.parse_args(words)
    code: int = diagnosis.command(diagnosis)
    _print_message(f"to print the report again: {command('diagnose', typed(folder))}")
    return code


def _elsewhere(arguments: argparse.Namespace) -> int:
    """Let the hosts of a Slurm job, or those that are named, collect into one folder that they share."""
    tool, hosts = ("srun", []) if arguments.hosts is None else ("ssh", [*filter(None, arguments.hosts.split(","))])
    by = "no_srun" if tool == "srun" else "no_ssh"
    both = tool == "ssh" and arguments.slurm is not None
    _errors.refuse({"both": both, "no_host": tool == "ssh" and not hosts, by: shutil.which(tool) is None})
    folder = make_folder(arguments.folder, FOLDERS, "process", 0o700).absolute()
    inner = [sys.executable, "-m", "dtk", "attach", "--collect", "--folder", str(folder)]
    inner += ["--rounds", str(arguments.rounds), "--every-s", str(arguments.every_s)]
    inner += ["--no-native"] * arguments.no_native + ["--nonblocking"] * arguments.nonblocking
    job = [f"--jobid={arguments.slurm}", "--overlap", "--ntasks-per-node=1", *inner]
    # Each host asks for nothing, and what a user's shell would split is quoted.
    commands = [["ssh", "-o", "BatchMode=yes", "--", host, shlex.join(inner)] for host in hosts] or [["srun", *job]]
    running = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr) for argv in commands]
    ends_s = time.monotonic() + REMOTE_S
    try:
        codes = [process.wait(max(0.0, ends_s - time.monotonic())) for process in running]
    except subprocess.TimeoutExpired as error:
        raise _errors("no_answer", tool=tool, limit_s=REMOTE_S) from error
    finally:
        for process in running:
            process.kill()
    if silent := [host for host, code in zip(hosts, codes, strict=False) if code]:
        _print_message(f"{', '.join(silent)}: ssh or dtk attach failed there; the report is without their ranks")
    of = f"job {arguments.slurm}" if tool == "srun" else f"{', '.join(hosts)}"
    _errors.refuse({"nothing": not any(folder.iterdir())}, of=of, folder=folder, tool=tool, code=max(codes))
    return _diagnose(arguments, folder)


def _line(ranks: "Job") -> str:
    """Return `ranks 0-3 of 4 (pids 11 12 13 14): python train.py`."""
    first = ranks[min(ranks)]
    pids = first_of([ranks[rank].pid for rank in sorted(ranks)], separator=" ")
    return f"{ranks_spoken(tuple(sorted(ranks)))} of {first.world_size} (pids {pids}): {clean(first.command)[:100]}"


def _print_message(text: str) -> None:
    """Print one line on standard error; standard output is for the report."""
    print(f"dtk attach: {clean(text)}", file=sys.stderr, flush=True)
