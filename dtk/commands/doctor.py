"""`dtk doctor`: options, progress, exit code. Makes no check, and imports none before it has to."""

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import add_json, add_number, whole
from dtk.console.progress import Busy
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.doctor.report import Report

RUNS = "runs"
TIMEOUT_S = 60

DESCRIPTION = """\
Before blaming the code: is this machine fit to train? Checks versions and their fit, GPUs (by NVML), every pair
of GPUs, shared memory and limits, host name, interfaces and ports, the disk of the runs folder, and tries a tiny
collective of each kind between real ranks. Each check answers ok, warning, failure or n/a with the reason, and
what to type next. Nothing is changed; files that it writes for a trial are removed at once."""

EPILOG = """\
examples:
  dtk doctor                                all of it, some 15 seconds on a machine without GPUs
  dtk doctor --only gpus,pairs              some topics; --list names topics and checks
  dtk doctor --skip collectives,fsync -v    all but these, with every detail
  dtk doctor --json > doctor.json           for programs (schema dtk.doctor/1)
  dtk doctor --runs-folder /data/runs       the disk that runs will really use
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m dtk doctor
                                            several nodes: each checks itself, rank 0 prints one table a node, the
                                            differences between nodes, clock skew, and collectives among all ranks

exit code: 0 fit, maybe with warnings; 1 a failure (of torchrun as well); 2 wrong input (one line).
What each check looks at and when it fails: docs/doctor.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "doctor",
        help="is this machine, are these nodes fit to train: GPUs, limits, network, disk, tiny collectives",
        usage="dtk doctor [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME,...", help="these checks or topics alone")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME,...", help="all but these")
    parser.add_argument("--list", action="store_true", help="name all checks and what they look at; make none")
    add_json(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="with the details of checks that are ok")
    parser.add_argument("--runs-folder", default=RUNS, metavar="DIR", help="the disk to check (default: runs)")
    port = "rendezvous port that the job will use (default: MASTER_PORT, else 29500)"
    add_number(parser, "--port", whole(1, 65535), port)
    add_number(parser, "--timeout-s", whole(10, 3600), "longest wait for each slow check", TIMEOUT_S, "S")
    parser.set_defaults(command=run, stopped="before all checks were made")


def run(arguments: argparse.Namespace) -> int:
    """Examine, print.

    Returns:
        exit code.

    Raises:
        DtkError: an option cannot be used, or the ranks of several nodes did not meet.
    """
    from dtk.launch.children import end_all

    _check(arguments)
    from dtk.doctor.rank_identity import launched

    # A rank waits in torch, where Python's handlers do not run: there SIGTERM keeps its default.
    before = signal.getsignal(signal.SIGTERM) if launched() else signal.signal(signal.SIGTERM, _stop)
    try:
        return _list(arguments) if arguments.list else _examine(arguments)
    finally:
        end_all()
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: object) -> NoReturn:
    """End by a signal, but not without the children."""
    sys.exit(128 + number)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse unknown checks, a selection without a check, and an empty name of a folder."""
    from dtk.doctor.registry import chosen

    chosen(arguments.only, arguments.skip)
    if not arguments.runs_folder.strip():
        raise DtkError("--runs-folder names no folder", fix="dtk doctor --runs-folder runs")


def _list(arguments: argparse.Namespace) -> int:
    """Name the chosen checks."""
    from dtk.doctor.registry import BETWEEN, chosen

    checks, between = chosen(arguments.only, arguments.skip)
    rows = [(check.topic, check.name, check.about) for check in checks]
    rows += [("nodes", name, f"between nodes: {about}") for name, about in BETWEEN.items() if name in between]
    if arguments.json:
        import json

        output.put(
            json.dumps([dict(zip(("topic", "name", "about"), row, strict=True)) for row in rows], indent=2) + "\n"
        )
    else:
        output.put("".join(f"{topic:<12} {name:<17} {text}\n" for topic, name, text in rows))
    return 0


def _examine(arguments: argparse.Namespace) -> int:
    """Make the chosen checks, on this machine or on all nodes of a job."""
    from dtk.doctor.examine import examine
    from dtk.doctor.rank_identity import launched, place
    from dtk.doctor.registry import chosen
    from dtk.doctor.report import Node, Report
    from dtk.doctor.scope import Scope

    checks, between = chosen(arguments.only, arguments.skip)
    scope = Scope(Path(arguments.runs_folder), arguments.port, float(arguments.timeout_s))
    if launched():
        from dtk.extras import require_training

        here = place()
        require_training("dtk doctor on several nodes needs")
        from dtk.doctor import nodes

        with Busy("checking", shown=here.rank == 0) as busy:
            report, leave = nodes.run(here, checks, between, scope, lambda check: busy.now(f"checking {check.name}"))
        if report is None:
            return leave(0)
        _print(report, arguments)
        return leave(report.exit_code())
    import socket

    from dtk.doctor.node_checks import alone

    began = time.monotonic()
    with Busy("checking") as busy:
        made = examine(checks, scope, lambda check: busy.now(f"checking {check.name}")) + alone(between)
    report = Report((Node(0, socket.gethostname(), tuple(made)),), (), time.monotonic() - began)
    _print(report, arguments)
    return report.exit_code()


def _print(report: "Report", arguments: argparse.Namespace) -> None:
    from dtk.doctor.report import as_json, document

    report_forms.hand_over(arguments, report, as_json, document, verbose=arguments.verbose)
