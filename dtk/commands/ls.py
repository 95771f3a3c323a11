"""`dtk ls`: the runs of a folder, one line each."""

import argparse
import sys
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import command
from diagnostics.runs.find import RUNS
from diagnostics.runs.text import listing, listing_json
from dtk.console import output
from dtk.console.options import add_json, whole
from dtk.runs.select import SORTS, add_selection, runs_in, selected


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser("ls", text="ls", help="list runs, newest first")
    parser.add_argument("folder", nargs="?", type=Path, default=RUNS, metavar="FOLDER", help="default: runs")
    add_selection(parser)
    keys = f"{', '.join(SORTS)}; default: age, newest first"
    parser.add_argument("--sort", choices=SORTS, default="age", metavar="KEY", help=keys)
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("-n", "--limit", type=whole(1, 10**9), metavar="N", help="only the first N of them")
    add_json(parser)
    parser.set_defaults(command=ls)


def ls(arguments: argparse.Namespace) -> int:
    """List.

    Raises:
        DtkError: the folder cannot be read.
    """
    folder: Path = arguments.folder
    runs = runs_in(folder, f"{command('ls')} FOLDER")
    chosen = selected(runs, arguments)
    if arguments.sort != "age":  # They come sorted by age.
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
        print(f"none of the {len(runs):,} runs in {folder} is like that", file=sys.stderr)
    else:
        output.put(listing(chosen, columns=output.columns(), colour=output.colours()))
    return 0
