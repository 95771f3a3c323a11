"""`dtk doctor`: options, progress and exit code. Imports each check only when it runs."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dtk.console import output
from dtk.console.progress import Busy
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.doctor.model import Check
    from dtk.doctor.report import Report


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print the report; DtkError if an option cannot be used, or ranks did not meet."""
    from diagnostics.report import document as doc, jsonform
    from dtk.doctor.registry import BETWEEN, chosen
    from dtk.launch.children import end_all
    from dtk.rank.job import started_by

    checks, between = chosen(arguments.only, arguments.skip)
    if arguments.list:
        header = ("topic", "name", "about")
        rows = [(check.topic, check.name, check.about) for check in checks]
        rows += [("nodes", name, f"between nodes: {about}") for name, about in BETWEEN.items() if name in between]
        if arguments.json:
            output.put(jsonform.text([dict(zip(header, row, strict=True)) for row in rows]))
        else:
            output.put(output.rendered(doc.Document("", "", (doc.table([header, *rows]),))))
        return 0
    if not arguments.runs_folder.strip():
        raise DtkError("--runs-folder names no folder", fix="dtk doctor --runs-folder runs")

    def stop(number: int, frame: object) -> NoReturn:
        """Exit on a signal, so that the child processes are terminated as well."""
        sys.exit(128 + number)

    # A rank waits inside torch, where Python signal handlers do not run, so ranks keep the default of SIGTERM.
    before = signal.getsignal(signal.SIGTERM) if started_by(os.environ) else signal.signal(signal.SIGTERM, stop)
    try:
        return _examine(arguments, checks, between)
    finally:
        end_all()
        signal.signal(signal.SIGTERM, before)


def _examine(arguments: argparse.Namespace, checks: "Sequence[Check]", between: frozenset[str]) -> int:
    """Run the selected checks on this machine or on all nodes of a job."""
    from dtk.doctor.model import Scope
    from dtk.doctor.rank_identity import place
    from dtk.doctor.registry import examine
    from dtk.doctor.report import Node, Report
    from dtk.rank.job import started_by

    scope = Scope(Path(arguments.runs_folder), arguments.port, float(arguments.timeout_s))
    if started_by(os.environ):
        from dtk.extras import require_training

        here = place()
        require_training("dtk doctor on several nodes needs")
        from dtk.doctor import nodes

        with Busy("checking", shown=here.rank == 0) as busy:
            report, leave = nodes.run(here, checks, between, scope, lambda check: busy.now(f"checking {check.name}"))
        if report is None:
            return leave(0)
        _print(report, arguments)
        return leave(report.exit_code)
    import socket

    from dtk.doctor.node_checks import alone

    began = time.monotonic()
    with Busy("checking") as busy:
        results = examine(checks, scope, lambda check: busy.now(f"checking {check.name}")) + alone(between)
    report = Report((Node(0, socket.gethostname(), tuple(results)),), (), time.monotonic() - began)
    _print(report, arguments)
    return report.exit_code


def _print(report: "Report", arguments: argparse.Namespace) -> None:
    from dtk.doctor.report import as_json, document

    output.hand_over(arguments, report, as_json, document, verbose=arguments.verbose)
