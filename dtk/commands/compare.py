"""`dtk compare`: options, where the comparison goes, exit code. Compares nothing itself and loads torch never."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.invocation import command
from dtk.console import output
from dtk.console.help_text import HelpFormatter
from dtk.console.numbers import above_zero, whole
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.compare.compare import Options
    from dtk.compare.model import Comparison

COMPARABLE, NOT_COMPARABLE = 0, 1
PAGE = Path("dtk-comparison.html")


DESCRIPTION = """\
Compare runs fairly. Parity first: the same global tokens per step, sample ids, initial weights, number
formats, clipping, data, and losses that agree. If they do not, it says what differs and no speed is
compared. Then tokens/s, step time, peak memory, exposed communication, communicated bytes and energy,
each with median, interval over repeats and ratio to the first run; scaling efficiency; and why.

RUN is a run folder, an id under runs/ or its unique beginning, "last", or a folder of runs. The first is
what the others are held against. Runs that differ in nothing but chance are repeats of one variant."""

EXAMPLES = """\
examples:
  dtk compare runs/20261121-1200*                      what the shell finds
  dtk compare 20261121-120000 20261121-120110          by the beginning of their ids
  dtk compare runs/*ddp* runs/*fsdp* --html            and one page to open or to send: {page}
  dtk compare sweep_runs --markdown                    all runs of a folder, for an issue
  dtk compare runs/a runs/b --json | jq .verdicts      for programs
  dtk run -m strategy=ddp,zero1,fsdp repeats=3 record=full    runs worth comparing, in turns

exit code: 0 the runs did the same work; 1 they did not, or fewer than two have figures: no speed is
compared; 2 a RUN or an option cannot be used (one line).
Guide: docs/compare.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "compare",
        help="compare runs fairly: parity, then speed and memory with intervals, then why",
        usage="dtk compare RUN RUN [...] [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES.format(page=PAGE),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folder, id, beginning of an id, or last")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON on standard output and nothing else")
    form.add_argument("--markdown", action="store_true", help="as Markdown on standard output")
    parser.add_argument(
        "--html", nargs="?", type=Path, const=PAGE, metavar="FILE", help=f"write the page as well (default: {PAGE})"
    )
    parser.add_argument(
        "--warmup",
        type=whole(0, 10**9, "number of steps"),
        metavar="STEPS",
        help="steps at the beginning of every attempt that do not count (default: 2)",
    )
    parser.add_argument(
        "--loss-tolerance",
        type=above_zero(10.0, "relative difference between 0 and 10"),
        metavar="X",
        help="largest relative difference of losses (default: 0.001 in float32, 0.02 in 16 bits)",
    )
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="auto honours NO_COLOR")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write.

    Raises:
        DtkError: a run or an option cannot be used.
    """
    from dtk.compare.compare import Options
    from dtk.compare.steps import WARMUP_STEPS

    _settle(arguments)
    if arguments.html:
        output.check_page(arguments.html, PAGE)
    progress = Progress(after_s=AFTER_S)
    warmup_steps = WARMUP_STEPS if arguments.warmup is None else arguments.warmup
    options = Options(warmup_steps=warmup_steps, loss_tolerance=arguments.loss_tolerance, progress=progress.say)
    try:
        found = _compare(_folders(arguments.runs), options)
    finally:
        progress.end()
    problem = None
    if arguments.html:
        from diagnostics.report import html
        from dtk.compare.report import document

        problem = output.kept(arguments.html, html.render(document(found)))
    _put(arguments, found)
    if problem is not None:
        raise problem
    if arguments.html and not (arguments.json or arguments.markdown):
        output.put(f"\npage: {arguments.html}\n")
    return _code(found)


def _put(arguments: argparse.Namespace, found: "Comparison") -> None:
    """Print the comparison in the requested form."""
    from diagnostics.report import markdown, terminal
    from dtk.compare import jsonform
    from dtk.compare.report import document

    if arguments.json or arguments.markdown:
        output.put(jsonform.dumps(found) if arguments.json else markdown.render(document(found)))
        return
    colour = arguments.color == "always" or (arguments.color == "auto" and output.colours())
    output.put(terminal.render(document(found), columns=output.columns(), colour=colour))


def _settle(arguments: argparse.Namespace) -> None:
    """`--html RUN` without a FILE means the run."""
    if arguments.html and arguments.html != PAGE and arguments.html.is_dir():
        arguments.runs, arguments.html = [*arguments.runs, str(arguments.html)], PAGE


def _folders(names: Sequence[str]) -> list[Path]:
    """Return the named run folders; a folder that contains runs stands for all of them."""
    from diagnostics.evidence.run_folder import is_run, runs_in
    from diagnostics.runs.find import NoSuchRunError, find_run

    folders: list[Path] = []
    for name in names:
        path = Path(name)
        if name and path.is_dir() and not is_run(path) and (inside := runs_in(path)):
            folders += [path / one for one in inside]
            continue
        try:
            folders.append(find_run(name))
        except NoSuchRunError as error:
            raise DtkError(str(error), fix=f"{command('ls')} lists the runs") from error
    return folders


def _compare(folders: Sequence[Path], options: "Options | None" = None) -> "Comparison":
    from diagnostics.contract.errors import DiagnosticsError
    from dtk.compare.compare import compare

    try:
        return compare(folders, options)
    except DiagnosticsError as error:
        raise DtkError(error.what, fix=error.fix) from error


def _code(found: "Comparison") -> int:
    return COMPARABLE if found.comparable else NOT_COMPARABLE
