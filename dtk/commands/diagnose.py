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
from dtk.console.options import above_zero, add_colour, add_json, add_number, add_page
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

if TYPE_CHECKING:
    from diagnostics.report.model import Report

FORMATS = ("terminal", "json", "markdown", "html", "mermaid", "dot", "openpsa")
HEALTHY, FOUND = 0, 1
PAGE = Path("dtk-report.html")

DESCRIPTION = """\
Say why a run hung, crashed, ran out of memory or crawls: the cause, the ranks to blame, the source
lines, the evidence, how to fix it, what was ruled out and what could not be decided.

PATH is a run of dtk (its folder, its id under runs/, or "last"), or a folder or file that any PyTorch
job left behind: flight-recorder dumps, profiler traces, Nsight Systems sqlite exports, memory
snapshots, logs, elastic error files, stack dumps, in any mix. Files are known by their content."""

EXAMPLES = """\
examples:
  dtk diagnose last                             the newest run under runs/
  dtk diagnose /tmp/job42 -v                    with the fault tree and all evidence
  dtk diagnose /tmp/job42 --html report.html    and one page to open or to send
  dtk diagnose last --json | jq .root_causes    for programs (schema: docs/report.schema.json)
  dtk diagnose last --format mermaid            the fault tree as a drawing; also dot, openpsa
  dtk diagnose last --verify-fix                and run again with the first remedy: does it hold?

For a run of dtk the report is also written to its folder: report/report.json, .html and .md.

{limits}

exit code: 0 healthy; 1 causes were found, or trouble that no evidence explains; 2 PATH or an option
cannot be used (one line). With --verify-fix: 0 the fix holds, 1 it does not, or the cause is gone and
no gain was measured.

Guide, own fault trees and own detectors: docs/diagnose.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "diagnose",
        help="why a run hung, crashed, ran out of memory or is slow",
        usage="dtk diagnose PATH [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES.format(limits=_limits_text(Limits())),
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="folder, file, run id or last")
    parser.add_argument("-v", "--verbose", action="store_true", help="the fault tree, all evidence, all findings")
    add_json(parser)
    parser.add_argument(
        "--format", choices=FORMATS, default="terminal", help=f"one of {', '.join(FORMATS)}", metavar="F"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of standard output")
    add_page(parser, PAGE)
    parser.add_argument(
        "--tree",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a fault tree of your own (YAML), repeatable",
    )
    scale = f"multiply the limits on files (below) by X; {MOST_DEPTH} levels of JSON at most"
    add_number(parser, "--limit-scale", above_zero(1e6), scale, 1.0, "X")
    parser.add_argument(
        "--verify-fix",
        action="store_true",
        help="of a dtk run: run it again for a few steps with the first remedy, and print before and after",
    )
    parser.add_argument(
        "--trust", action="store_true", help="with --verify-fix: take a run folder that others own or can write to"
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
    if arguments.verify_fix:
        return _verify(report, trust=arguments.trust)
    return HEALTHY if report.healthy else FOUND


def _verify(report: "Report", *, trust: bool) -> int:
    """Run again with the first remedy."""
    require_training("--verify-fix runs the job and needs")
    from dtk.verify.proof import table
    from dtk.verify.verify import verify

    def say(text: str) -> None:
        print(f"verify: {text} ...", file=sys.stderr, flush=True)

    proof = verify(report, say, trust=trust)
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
    """Return the report in the requested form."""
    from diagnostics.report import html, jsonform, markdown, terminal
    from diagnostics.report.diagnosis import document
    from diagnostics.tree.export import FORMATS as DRAWINGS

    if arguments.format in DRAWINGS:
        return DRAWINGS[arguments.format](report.tree)
    if arguments.format == "json":
        return jsonform.dumps(report)
    if arguments.format in ("markdown", "html"):
        return {"markdown": markdown.render, "html": html.render}[arguments.format](document(report))
    shown = arguments.output is None
    columns = output.columns() if shown else None
    colour = arguments.color == "always" or (arguments.color == "auto" and shown and output.colours())
    built = document(report, brief=not arguments.verbose, page=page)
    return terminal.render(built, columns=columns, colour=colour)


def _limits_text(limits: Limits) -> str:
    return (
        "limits against hostile and broken files (--limit-scale X multiplies them):\n"
        f"  {limits.whole_bytes >> 20} MiB for a dump, snapshot or stack file, after decompression\n"
        f"  {limits.stream_bytes >> 30} GiB for a trace or log, after decompression; "
        f"{limits.ratio}-fold decompression\n"
        f"  {limits.depth} levels of JSON ({MOST_DEPTH} at most, whatever X is); "
        f"{limits.event_bytes >> 20} MiB for one event of a trace; "
        f"{limits.line_bytes >> 10} KiB of a log line; {limits.files:,} files\n"
        f"  {limits.spans:,} device events of one trace or Nsight export (the window ends there)\n"
        "Nothing in a file is executed, and links that lead out of PATH are not followed. What is over a limit is\n"
        "named in the report (unread)."
    )
