"""`dtk ls`: the runs of a folder, one line each."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import command
from diagnostics.runs.find import RUNS, Run
from diagnostics.runs.text import listing, listing_json
from dtk.console import output
from dtk.console.options import add_json, whole
from dtk.runs.select import add_selection, runs_in, selected

_FAR = float("inf")
_SORTS: dict[str, Callable[[Run], Any]] = {
    "age": lambda run: _FAR if run.age_s is None else run.age_s,
    "loss": lambda run: _FAR if run.loss is None else run.loss,
    "name": lambda run: run.id,
    "state": lambda run: run.state,
    "steps": lambda run: _FAR if run.step is None else -run.step,
    "tokens/s": lambda run: _FAR if run.tokens_per_s is None else -run.tokens_per_s,
}
_EPILOG = """\
examples:
  dtk ls                                   all runs under runs/, newest first
  dtk ls --failed --limit 5                the last five that went wrong
  dtk ls --state finished --sort loss      the best on top
  dtk ls --older-than 7d                   what dtk rm --older-than 7d would ask about
  dtk ls --json | jq -r '.[].path'         for programs
  dtk ls /data/runs                        another folder

state: as status.json says (queued = submitted to a scheduler); lost = it says running, but its process is gone;
damaged = its status cannot be read; newer = written by a newer dtk.
exit code: 0, also where there are no runs; 2 the folder or an option cannot be used (one line)."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "ls",
        help="list runs, newest first",
        description="List the runs of a folder: state, steps, loss, tokens/s and age.",
        epilog=_EPILOG,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=RUNS, metavar="FOLDER", help="default: runs")
    add_selection(parser)
    parser.add_argument(
        "--sort", choices=_SORTS, default="age", metavar="KEY", help=f"{', '.join(_SORTS)}; default: age, newest first"
    )
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
        chosen.sort(key=_SORTS[arguments.sort])
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
