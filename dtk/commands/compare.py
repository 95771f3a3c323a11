"""`dtk compare`: options, where the comparison goes, exit code. Compares nothing itself and loads torch never."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import above_zero, add_colour, add_json, add_number, add_page, whole
from dtk.console.progress import AFTER_S, Progress

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
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folder, id, beginning of an id, or last")
    form = parser.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--markdown", action="store_true", help="as Markdown on standard output")
    add_page(parser, PAGE)
    warmup = "steps at the beginning of every attempt that do not count (default: 2)"
    add_number(parser, "--warmup", whole(0, 10**9), warmup, metavar="STEPS")
    losses = "largest relative difference of losses (default: 0.001 in float32, 0.02 in 16 bits)"
    add_number(parser, "--loss-tolerance", above_zero(10.0), losses, metavar="X")
    add_colour(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write.

    Raises:
        DtkError: a run or an option cannot be used.
    """
    from dtk.compare.compare import Options, compare
    from dtk.compare.jsonform import as_json
    from dtk.compare.report import document
    from dtk.compare.steps import WARMUP_STEPS

    if arguments.html and arguments.html != PAGE and arguments.html.is_dir():  # `--html RUN` without a FILE.
        arguments.runs, arguments.html = [*arguments.runs, str(arguments.html)], PAGE
    if arguments.html:
        output.check_page(arguments.html, PAGE)
    progress = Progress(after_s=AFTER_S)
    warmup_steps = WARMUP_STEPS if arguments.warmup is None else arguments.warmup
    options = Options(warmup_steps=warmup_steps, loss_tolerance=arguments.loss_tolerance, progress=progress.say)
    try:
        found = compare(_folders(arguments.runs), options)
    finally:
        progress.end()
    report_forms.hand_over(arguments, found, as_json, document)
    if arguments.html and not (arguments.json or arguments.markdown):
        output.put(f"\npage: {arguments.html}\n")
    return COMPARABLE if found.comparable else NOT_COMPARABLE


def _folders(names: Sequence[str]) -> list[Path]:
    """Return the named run folders; a folder that contains runs stands for all of them."""
    from diagnostics.evidence.run_folder import is_run, runs_in
    from dtk.runs.find import find

    folders: list[Path] = []
    for name in names:
        path = Path(name)
        if name and path.is_dir() and not is_run(path) and (inside := runs_in(path)):
            folders += [path / one for one in inside]
            continue
        folders.append(find(name))
    return folders
