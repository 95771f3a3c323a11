"""`dtk bench comm`: options, output and exit code. `--help` does not import torch."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dtk.bench.bandwidth import DTYPES, OPERATIONS, size_of, sizes
from dtk.console import output
from dtk.console.options import Parser, add_command, read_options, taken
from dtk.console.progress import Progress
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError
from dtk.extras import load, require_training

if TYPE_CHECKING:
    from dtk.bench.measure import Leader

DONE, FAILED = 0, 1  # Exit codes.
PAGE = Path("dtk-bench-comm.html")
MOST = {"cpu": "16M", "cuda": "1G"}


def add_more(bench: Parser) -> None:
    """Add the subcommand of `bench`."""
    topics = bench.add_subparsers(title="topics", metavar="TOPIC")
    most = ", ".join(f"{size} on {device}" for device, size in MOST.items())
    names = {"operations": ",".join(OPERATIONS), "dtypes": tuple(DTYPES), "most": most, "page": PAGE}
    add_command(topics, "comm", read_options(__file__)["comm"], comm, **names)


def comm(arguments: argparse.Namespace) -> int:
    """Measure collectives and report the results. Under torchrun and srun every rank calls this; only rank 0 reports.

    DtkError if an option, an override or a preset cannot be used.
    """
    require_training("dtk bench comm needs")
    load("torch")
    from dtk.launch.processes import ended_by_sigterm
    from dtk.rank.job import started_by

    with ended_by_sigterm():
        launcher = started_by(os.environ)
        if launcher is not None:
            return _joined(arguments, launcher)
        return _measure(arguments)


def _joined(arguments: argparse.Namespace, launcher: str) -> int:
    """Run as one rank of torchrun or Slurm, and return the exit code."""
    from dtk.bench.measure import Leader, follow_leader
    from dtk.launch.cluster import SHARE_TIMEOUT_S, adopt_slurm
    from dtk.parallel.context import meet

    if launcher == "slurm":
        os.environ.update(adopt_slurm(os.environ))
    store = meet(SHARE_TIMEOUT_S)
    if os.environ["RANK"] != "0":
        return follow_leader(store)
    team = Leader(store)
    code = USER_ERROR
    try:
        code = _measure(arguments, team)
    finally:
        team.close(code)
    return code


def _measure(arguments: argparse.Namespace, leader: "Leader | None" = None) -> int:
    """Measure and report; without a `leader` of ranks that exist, this process starts them."""
    output.check_page(arguments.html, PAGE)
    import torch

    from dtk.bench.measure import STOPPED, Team, choose, measure
    from dtk.bench.model import Spec, as_json
    from dtk.bench.report import document
    from dtk.launch.cluster import local_size

    given = None if leader is None else local_size(os.environ)
    devices = torch.cuda.device_count()
    placement, sides = choose(arguments.overrides, arguments.ab or (), arguments.config_dir, devices, given)
    team = leader or Team(placement.nproc, placement.threads)
    least, most = size_of(arguments.min_size), size_of(arguments.max_size or MOST[placement.device])
    spec = taken(
        Spec, arguments, operations=_operations(arguments.op), device=placement.device, backend=placement.backend,
        sizes_bytes=tuple(sizes(least, most, arguments.factor)), passes=0,
    )  # fmt: skip
    repeats = arguments.repeats or (5 if arguments.ab else 7)
    with Progress() as progress:
        report = measure(team, spec, sides, repeats, progress.show)
    if not report.results:
        arguments.html = None
    if report.results or arguments.json:
        output.hand_over(arguments, report, as_json, document, page=True)
    if report.failure:
        print(f"dtk: {report.failure}", file=sys.stderr)
        return INTERRUPTED if report.failure == STOPPED else FAILED
    return FAILED if report.wrong else DONE


def _operations(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(OPERATIONS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in OPERATIONS:
            from diagnostics.contract.suggest import did_you_mean

            fix = did_you_mean(name, OPERATIONS) or f"operations: {', '.join(OPERATIONS)}"
            raise DtkError(f"there is no operation {name!r}", fix=fix)
    return tuple(dict.fromkeys(names))
