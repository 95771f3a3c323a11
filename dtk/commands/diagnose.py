"""`dtk diagnose`: options, where the report goes, exit code. Explains nothing itself and loads torch never.

Only argparse is imported before a path is there to diagnose, so `--help` is instant.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.invocation import command, typed
from diagnostics.evidence.limits import MOST_DEPTH, Limits
from dtk.console import output
from dtk.console.options import above_zero, add_colour, add_flags, add_json, add_number, add_page, add_verbose
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

if TYPE_CHECKING:
    from diagnostics.report.model import Report

FORMATS = ("terminal", "json", "markdown", "html", "mermaid", "dot", "openpsa")
HEALTHY, FOUND = 0, 1  # Exit codes.
PAGE = Path("dtk-report.html")


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    limits = Limits()
    parser = commands.add_parser(
        "diagnose",
        text="diagnose",
        values={
            "whole_mib": limits.whole_bytes >> 20,
            "stream_gib": limits.stream_bytes >> 30,
            "ratio": limits.ratio,
            "depth": limits.depth,
            "most_depth": MOST_DEPTH,
            "event_mib": limits.event_bytes >> 20,
            "line_kib": limits.line_bytes >> 10,
            "files": f"{limits.files:,}",
            "spans": f"{limits.spans:,}",
            "seconds": limits.seconds,
            "memory_gib": limits.memory_bytes >> 30,
        },
        help="why a run hung, crashed, ran out of memory or is slow",
        usage="dtk diagnose PATH [options]",
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="folder, file, run id or last")
    add_verbose(parser)
    add_json(parser)
    forms = f"one of {', '.join(FORMATS)}"
    parser.add_argument("--format", choices=FORMATS, default="terminal", metavar="F", help=forms)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of standard output")
    add_page(parser, PAGE)
    tree = "a fault tree of your own (YAML), repeatable"
    parser.add_argument("--tree", type=Path, action="append", default=[], metavar="FILE", help=tree)
    scale = f"multiply the limits on files (below) by X; {MOST_DEPTH} levels of JSON at most"
    add_number(parser, "--limit-scale", above_zero(1e6), scale, 1.0, "X")
    add_flags(
        parser,
        verify_fix="of a dtk run: run it again for a few steps with the first remedy, and print before and after",
        trust="with --verify-fix: take a run folder that others own or can write to",
    )
    add_colour(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, print, write.

    Raises:
        DtkError: the path or an option cannot be used.
    """
    from diagnostics.diagnose import Options, diagnose

    _settle(arguments)
    path = find(arguments.path)
    progress = Progress(after_s=AFTER_S, terminal_only=True)
    options = Options(Limits().scaled(arguments.limit_scale), tuple(arguments.tree), progress.say)
    try:
        report = diagnose(path, options, source=str(path))
    finally:
        progress.end()
    page = ""
    if report.run_folder:
        from diagnostics.report.files import write_beside_run

        page, problem = write_beside_run(report, typed(Path(report.run_folder)))
        if problem:
            print(f"dtk: {problem}", file=sys.stderr)
    if arguments.html:
        from diagnostics.report import html
        from diagnostics.report.diagnosis import document

        output.write(arguments.html, html.render(document(report)))
        page = str(arguments.html)
    text = _rendered(report, arguments, page)
    if arguments.output:
        output.write(arguments.output, text)
    else:
        output.put(text)
    if not arguments.verify_fix:
        return HEALTHY if report.healthy else FOUND
    require_training("--verify-fix runs the job and needs")
    from dtk.verify.proof import table
    from dtk.verify.verify import verify

    proof = verify(report, lambda text: print(f"verify: {text} ...", file=sys.stderr), trust=arguments.trust)
    sys.stdout.write("\n" + table(proof))
    return HEALTHY if proof.holds else FOUND


def find(name: str) -> Path:
    """Return the path for what was typed: a file, a folder, a run id or its beginning, or `last`.

    Raises:
        DtkError: there is no such thing.
    """
    from diagnostics.runs.find import NoSuchRunError, find_run

    path = Path(name)
    if path.exists() and name:
        return path
    try:
        return find_run(name)
    except NoSuchRunError as error:
        fix = f"give a folder, a file, a run id or last; {command('ls')} lists the runs"
        raise DtkError(str(error), fix=fix) from error


def _settle(arguments: argparse.Namespace) -> None:
    """Options that belong together; `--html PATH` without a FILE means the path."""
    if arguments.path is None and arguments.html and arguments.html != PAGE and arguments.html.exists():
        arguments.path, arguments.html = str(arguments.html), PAGE
    if arguments.path is None:
        fix = f"{command('diagnose')} PATH; {command('diagnose', 'last')} takes the newest run"
        raise DtkError("what is to be diagnosed?", fix=fix)
    if arguments.verify_fix and (arguments.json or arguments.format != "terminal"):
        raise DtkError("--verify-fix prints a comparison for people", "and --json and --format print for programs")
    if arguments.json and arguments.format not in ("terminal", "json"):
        raise DtkError(f"--json and --format {arguments.format} contradict each other", fix="give one of them")
    if arguments.json:
        arguments.format = "json"


def _rendered(report: "Report", arguments: argparse.Namespace, page: str) -> str:
    """Return the report in the requested form; a renderer takes its time to import, so only this one is."""
    from diagnostics.report.diagnosis import document

    if arguments.format in ("json", "markdown", "html"):
        from diagnostics.report import html, jsonform, markdown

        if arguments.format == "json":
            return jsonform.dumps(report)
        render = markdown.render if arguments.format == "markdown" else html.render
        return render(document(report))
    if arguments.format != "terminal":
        from diagnostics.tree.export import FORMATS as DRAWINGS

        return DRAWINGS[arguments.format](report.tree)
    from diagnostics.report import terminal

    shown = arguments.output is None
    columns = output.columns() if shown else None
    colour = arguments.color == "always" or (arguments.color == "auto" and shown and output.colours())
    built = document(report, brief=not arguments.verbose, page=page)
    return terminal.render(built, columns=columns, colour=colour)
