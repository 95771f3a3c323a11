"""`dtk compare`: options, output and exit code. Never imports torch."""

import argparse
from pathlib import Path

from dtk.console import output
from dtk.console.progress import AFTER_S, Progress

COMPARABLE, NOT_COMPARABLE = 0, 1  # Exit codes.
PAGE = Path("dtk-comparison.html")
VALUES = {"page": PAGE}


def run(arguments: argparse.Namespace) -> int:
    """Compare runs, print the report and write the page; DtkError if a run or an option cannot be used."""
    from diagnostics.evidence.job.run_folder import is_run, runs_in
    from diagnostics.evidence.metrics import WARMUP_STEPS
    from diagnostics.report import document as doc
    from dtk.compare.compare import compare
    from dtk.compare.limits import check_limits, limit_row, parse_limit
    from dtk.compare.report import as_json, document
    from dtk.runs.find import find, matching

    if arguments.html and arguments.html != PAGE and arguments.html.is_dir():  # `--html RUN` without a FILE.
        arguments.runs, arguments.html = [*arguments.runs, str(arguments.html)], PAGE
    output.check_page(arguments.html, PAGE)
    for limit in arguments.fail_if:
        parse_limit(limit)
    names = arguments.runs if arguments.baseline is None else [arguments.baseline, *arguments.runs]
    warmup_steps = WARMUP_STEPS if arguments.warmup is None else arguments.warmup
    folders: list[Path] = []
    first = 0  # Number of folders that the first name expands to.
    with Progress(after_s=AFTER_S) as progress:
        for name in names:  # A pattern expands as in a shell, and a folder that contains runs to all of them.
            for match in matching(name):
                path = Path(match)
                inside = runs_in(path) if match and path.is_dir() and not is_run(path) else ()
                folders += [path / run for run in inside] or [find(match)]
            first = first or len(folders)
        comparison = compare(
            folders, warmup_steps=warmup_steps, loss_tolerance=arguments.loss_tolerance, progress=progress.show
        )
    limits = check_limits(comparison, folders[:first], arguments.fail_if) if arguments.fail_if else []
    output.hand_over(arguments, comparison, lambda compared: {**as_json(compared), "limits": limits}, document)
    if limits and not arguments.json:
        rows = doc.Table(("", ""), tuple(map(limit_row, limits)), names=2)
        output.put("\n" + output.rendered(doc.Document("", "", (rows,))))
    if arguments.html and not (arguments.json or arguments.markdown):
        output.put(f"\npage: {arguments.html}\n")
    return COMPARABLE if comparison.comparable and not any(limit["failed"] for limit in limits) else NOT_COMPARABLE
