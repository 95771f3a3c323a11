"""The batch script of a Slurm job. Submits nothing. srun starts every rank itself, as torchrun would kill ranks that
Slurm's signals ask for a checkpoint.
"""

import re
import sys
from pathlib import Path

from diagnostics.contract.files import table_beside
from dtk.config.folders import source_tree
from dtk.config.schema import SlurmLauncher
from dtk.console.script_text import check_form, check_line, sbatch_option, sbatch_word, shell
from dtk.errors import Errors
from dtk.launch.remote.submission import RANK, Submission

_errors, _TABLE = Errors(__file__), table_beside(__file__)
LOG = "slurm-%j.log"  # Below the run folder's logs; `%j` is the job id.
_BODY = Path(__file__).with_name("slurm_body.sh")
"""Main part of the script, after the variables: starts the ranks, forwards signals and requeues."""
_MEMORY = re.compile(r"\d+[KMGTkmgt]?")
_TIME = re.compile(r"\d+(:[0-5]?\d){0,2}|\d+-\d+(:[0-5]?\d){0,2}")


def render(job: Submission, folder: str) -> str:
    """Render the whole script; `folder` is the absolute working directory of the job.

    DtkError if a value is invalid for sbatch, or an option is reserved for dtk.
    """
    launcher: SlurmLauncher = job.launcher
    setup = [check_line(line, "launcher.setup") for line in launcher.setup]
    # Unset variables are errors only after the user's lines, which may source anything.
    lines = ["#!/bin/bash", *_options(job, folder), f"# {job.title()}", ":", *setup, "set -u"]
    # Variables that the user has not set, and dtk's source tree if it is not installed.
    lines += [f"[[ -v {name} ]] || export {name}={shell(value)}" for name, value in job.variables().items()]
    if not job.placement.threads:
        lines.append('[[ -v OMP_NUM_THREADS ]] || export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"')
    if launcher.master_port:
        lines.append(f"export MASTER_PORT={launcher.master_port}")
    if (source := source_tree()) is not None:
        lines.append(f'export PYTHONPATH={shell(source)}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return "\n".join([*lines, *_ranks(job), "", _BODY.read_text(encoding="utf-8")])


def _options(job: Submission, folder: str) -> list[str]:
    launcher: SlurmLauncher = job.launcher
    logs = str(job.paths.root / "logs")
    _errors.refuse({"backslash": "\\" in logs}, logs=logs)
    memory, time = launcher.memory_per_node, launcher.time
    given = {
        "job-name": job.paths.root.name,
        "nodes": launcher.nodes,
        "ntasks-per-node": job.placement.nproc,
        "gres": f"gpu:{launcher.gpus_per_node}" if launcher.gpus_per_node else None,
        "cpus-per-task": launcher.cpus_per_rank,
        "mem": memory and check_form(memory, _MEMORY, "launcher.memory_per_node", "an amount of memory", "200G"),
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "time": None
        if time is None
        else check_form(time, _TIME, "launcher.time", "a time limit", "minutes, 8:00:00 or 2-12"),
        # To the script alone: it tells the ranks, and then knows that the job is to continue.
        "signal": f"B:USR1@{launcher.signal_before_s}",
        "open-mode": "append",
        "chdir": folder,
        "output": f"{logs.replace('%', '%%')}/{LOG}",  # Slurm expands only `%j` here.
    }
    lines = [sbatch_option(name, value) for name, value in given.items() if value is not None]
    # Two jobs in one run folder would overwrite each other, so the second waits for the first.
    lines += ["#SBATCH --dependency=singleton", f"#SBATCH --{'requeue' if launcher.requeue else 'no-requeue'}"]
    for option in launcher.extra:
        name = option.partition("=")[0].removeprefix("--")
        key = _TABLE["keys"].get(name)
        _errors.refuse({"has_key": key, "fixed": name in _TABLE["fixed"]}, option=option, name=name, key=key)
    return [*lines, *map(sbatch_word, launcher.extra)]


def _ranks(job: Submission) -> list[str]:
    launcher: SlurmLauncher = job.launcher
    for option in launcher.srun_extra:
        is_option = check_line(option, "launcher.srun_extra").startswith("--")
        _errors.refuse({"no_option": not is_option}, option=option)
    counts = [
        f"--nodes={launcher.nodes}",
        f"--ntasks={job.placement.world_size}",
        f"--ntasks-per-node={job.placement.nproc}",
    ]
    counts += [f"--cpus-per-task={launcher.cpus_per_rank}"] if launcher.cpus_per_rank else []
    # Meshes assume that ranks of a node are consecutive. When one fails, the others report and exit.
    fixed = ["--distribution=block", "--kill-on-bad-exit=0", "--mpi=none", "--export=ALL"]
    options = [*counts, *fixed, *launcher.srun_extra]
    python = launcher.python or sys.executable
    return [
        f"run={shell(job.paths.root)}",
        f"command=(srun {shell(*options)}",
        f'  {shell(python, "-u", "-m", RANK)} "$run")',
        f"restarts={launcher.max_restarts}",
        f"requeue={'yes' if launcher.requeue else ''}",
    ]
