"""`dtk diagnose`: options, output and exit code. Never imports torch; `--help` imports argparse only."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from diagnostics.contract.formatting import command, typed
from diagnostics.evidence.limits import MOST_DEPTH, Limits
from dtk.console import output
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

if TYPE_CHECKING:
    from diagnostics.report.model import Report

FORMATS = ("terminal", "json", "markdown", "html", "mermaid", "dot", "openpsa")
HEALTHY, NOT_HEALTHY = 0, 1  # Exit codes.
PAGE = Path("dtk-report.html")
_LIMITS = Limits()
VALUES = {
    "page": PAGE, "forms": FORMATS, "depth": _LIMITS.depth, "most_depth": MOST_DEPTH, "ratio": _LIMITS.ratio,
    "whole_mib": _LIMITS.whole_bytes >> 20, "stream_gib": _LIMITS.stream_bytes >> 30,
    "event_mib": _LIMITS.event_bytes >> 20, "line_kib": _LIMITS.line_bytes >> 10, "files": f"{_LIMITS.files:,}",
    "spans": f"{_LIMITS.spans:,}", "seconds": _LIMITS.seconds, "memory_gib": _LIMITS.memory_bytes >> 30,
}  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Diagnose a path, print the report and write the files; DtkError if the path or an option cannot be used."""
    from diagnostics.diagnose import Options, diagnose

    _settle(arguments)
    path = find(arguments.path)
    with Progress(after_s=AFTER_S, terminal_only=True) as progress:
        options = Options(Limits().scaled(arguments.limit_scale), tuple(arguments.tree), progress.show)
        report = diagnose(path, options, source=str(path))
    page = ""
    if report.run_folder:
        from diagnostics.report.files import write_beside_run

        page, problem = write_beside_run(report, typed(Path(report.run_folder)))
        if problem:
            print(f"dtk: {problem}", file=sys.stderr)
    if arguments.html:
        from diagnostics.report import html
        from diagnostics.report.diagnosis import document

        files = quote(os.path.relpath(path, arguments.html.parent)) if path.is_dir() else ""
        output.write(arguments.html, html.render(document(report, files=files)))
        page = str(arguments.html)
    text = _rendered(report, arguments, page)
    if arguments.output:
        output.write(arguments.output, text)
    else:
        output.put(text)
    if not arguments.verify_fix:
        return HEALTHY if report.healthy else NOT_HEALTHY
    require_training("--verify-fix runs the job and needs")
    from dtk.verify.verify import table, verify

    proof = verify(report, lambda text: print(f"verify: {text} ...", file=sys.stderr), trust=arguments.trust)
    sys.stdout.write("\n" + table(proof))
    return HEALTHY if proof.holds else NOT_HEALTHY


def find(name: str) -> Path:
    """Return the path of a file, a folder, a run id or its beginning, or `last`; DtkError if nothing is found."""
    from dtk.runs.find import find as find_run

    path = Path(name)
    return path if path.exists() and name else find_run(name)


def _settle(arguments: argparse.Namespace) -> None:
    """Resolve options that depend on each other; `--html PATH` without a FILE means the path."""
    if arguments.path is None and arguments.html and arguments.html != PAGE and arguments.html.exists():
        arguments.path, arguments.html = str(arguments.html), PAGE
    if arguments.path is None:
        fix = f"{command('diagnose')} PATH; {command('diagnose', 'last')} diagnoses the newest run"
        raise DtkError("no PATH is given", fix=fix)
    if arguments.verify_fix and (arguments.json or arguments.format != "terminal"):
        raise DtkError("--verify-fix prints a comparison for people", "and --json and --format print for programs")
    if arguments.json and arguments.format not in ("terminal", "json"):
        raise DtkError(f"--json and --format {arguments.format} contradict each other", fix="give one of them")
    if arguments.json:
        arguments.format = "json"


def _rendered(report: "Report", arguments: argparse.Namespace, page: str) -> str:
    """Return the report in the requested format. Renderers are imported only when needed, as imports take time."""
    from diagnostics.report.diagnosis import document

    if arguments.format in ("json", "markdown", "html"):
        from diagnostics.report import html, jsonform, markdown

        if arguments.format == "json":
            return jsonform.text(jsonform.as_json(report))
        render = markdown.render if arguments.format == "markdown" else html.render
        return render(document(report))
    if arguments.format != "terminal":
        from diagnostics.report.tree_formats import FORMATS as DRAWINGS
        from diagnostics.report.wording import worded

        return DRAWINGS[arguments.format](worded(report.tree))
    from diagnostics.report import terminal

    shown = arguments.output is None
    columns = output.columns() if shown else None
    colour = arguments.color == "always" or (arguments.color == "auto" and shown and output.colours())
    built = document(report, brief=not arguments.verbose, page=page)
    return terminal.render(built, columns=columns, colour=colour)
