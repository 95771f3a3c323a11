"""`dtk ls`: the runs of a folder, one line each."""

import argparse
import sys
from pathlib import Path

from diagnostics.contract.formatting import command
from diagnostics.report import lines
from diagnostics.report.runs import listing, listing_json
from dtk.console import output
from dtk.runs.find import SORTS, add_selection, runs_in, selected

VALUES = {"sorts": tuple(SORTS)}
add_more = add_selection


def run(arguments: argparse.Namespace) -> int:
    """Print the selected runs of a folder; DtkError if the folder cannot be read."""
    folder: Path = arguments.folder
    runs = runs_in(folder, f"{command('ls')} FOLDER")
    chosen = selected(runs, arguments)
    if arguments.sort != "age":  # The runs are already sorted by age.
        chosen.sort(key=SORTS[arguments.sort])
    if arguments.reverse:
        chosen.reverse()
    chosen = chosen[: arguments.limit]
    if arguments.json:
        output.put(listing_json(chosen))
        return 0
    if not runs:
        print(f"no runs in {folder} yet; make one: {command('run', 'experiment=smoke')}", file=sys.stderr)
    elif not chosen:
        print(f"none of the {len(runs):,} runs in {folder} matches", file=sys.stderr)
    else:
        output.put(lines.render(listing(chosen), columns=output.columns(), colour=output.colours()))
    return 0
