"""`dtk rm`: removes run folders after a listing and a question. What may be removed, `remove` decides."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import bytes_text, clean, counted
from diagnostics.contract.invocation import command
from diagnostics.runs.find import RUNS, Run, read_run
from diagnostics.runs.text import listing
from dtk.console import output
from dtk.errors import USER_ERROR, DtkError
from dtk.runs.find import RUN_HELP, find
from dtk.runs.remove import Size, refusal, remove, size_of
from dtk.runs.select import add_selection, check_selection, runs_in, selected, selects

DECLINED = 1
"""Exit code when the answer was no."""
_SLOW_S = 2.0
_DESCRIPTION = """\
Remove run folders for good, checkpoints included: those that are named, or all in a folder that fit the options.
They are listed with what they hold, and a question comes first; --yes answers it."""
_EPILOG = """\
examples:
  dtk rm 20260102-1504              one run, by the beginning of its id
  dtk rm last                       the newest
  dtk rm --failed                   all that failed, hung, ran out of memory or were lost
  dtk rm --older-than 7d --yes      without a question, for a script
  dtk rm --failed --dry-run         the listing only

A run that is going is refused, or left out of a selection, and so is one that is damaged or of a newer dtk, unless
--force is given. Never removed: a folder that dtk did not make, and whatever a symbolic link leads to. If one of
several named runs is refused, nothing is removed.
exit code: 0 removed, or nothing to remove; 1 the answer was no; 2 nothing was touched for the reason in the one line,
or a folder could not be removed."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "rm",
        help="remove runs, after a question",
        usage="dtk rm RUN... [options]\n       dtk rm [--failed] [--state S[,S]] [--older-than AGE] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUN_HELP)
    add_selection(parser)
    parser.add_argument("--folder", type=Path, default=RUNS, metavar="FOLDER", help="where the runs lie; default: runs")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and stop")
    parser.add_argument("--force", action="store_true", help="also runs that are going, damaged or of a newer dtk")
    parser.set_defaults(command=rm)


def rm(arguments: argparse.Namespace) -> int:
    """List, ask, remove.

    Raises:
        DtkError: a run that is not there or may not be removed, or nobody to ask.
    """
    if bool(arguments.runs) == selects(arguments):
        examples = f"{command('rm', 'last')}; {command('rm', '--failed')}"
        why = "runs are named and options select others" if arguments.runs else "no run is named"
        raise DtkError("what is to be removed?", why, examples)
    asks = not arguments.yes and not arguments.dry_run
    runs, kept = (_named(arguments), []) if arguments.runs else _fitting(arguments)
    if asks and (sys.stdin is None or not sys.stdin.isatty()):
        raise DtkError("nothing was removed", "there is no terminal to ask at", "add --yes, or --dry-run to see it")
    for why in kept:
        print(f"kept: {clean(why)}", file=sys.stderr)
    if not runs:
        print("nothing to remove", file=sys.stderr)
        return 0
    size = _show(runs)
    if arguments.dry_run:
        return 0
    if asks and not _agreed(runs, size):
        print("nothing was removed", file=sys.stderr)
        return DECLINED
    return _remove(runs, arguments.force)


def _named(arguments: argparse.Namespace) -> list[Run]:
    """Return the named runs, each once, or raise DtkError if any of them may not be removed."""
    runs: dict[Path, Run] = {}
    for name in arguments.runs:
        path = find(name, arguments.folder)
        runs.setdefault(path.resolve(), read_run(path))
    for run in runs.values():
        if why := refusal(run, force=arguments.force):
            raise DtkError("nothing was removed", clean(why))
    return list(runs.values())


def _fitting(arguments: argparse.Namespace) -> tuple[list[Run], list[str]]:
    """Return the runs that match the options and may be removed, and the reasons why other matches may not."""
    check_selection(arguments)
    chosen = selected(runs_in(arguments.folder, f"{command('rm', '--folder')} FOLDER"), arguments)
    kept = [(run, why) for run in chosen if (why := refusal(run, force=arguments.force))]
    left_out = {id(run) for run, _ in kept}
    return [run for run in chosen if id(run) not in left_out], [why for _, why in kept]


def _show(runs: Sequence[Run]) -> Size:
    """Print what would go; returns how much that is."""
    output.put(listing(runs, columns=output.columns(), colour=output.colours()))
    began_s, told = time.monotonic(), False
    files = total = 0
    for run in runs:
        size = size_of(Path(run.path))
        files, total = files + size.files, total + size.bytes
        if not told and time.monotonic() - began_s > _SLOW_S:
            print(f"counting the files of {counted(len(runs), 'run')} ...", file=sys.stderr, flush=True)
            told = True
    output.put(f"{counted(len(runs), 'run')}, {counted(files, 'file')}, {bytes_text(total)} ({total:,} bytes)\n")
    return Size(files, total)


def _agreed(runs: Sequence[Run], size: Size) -> bool:
    """Ask at the terminal; anything but yes is no."""
    print(f"remove {counted(len(runs), 'run')} ({bytes_text(size.bytes)}) for good? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove(runs: Sequence[Run], force: bool) -> int:
    """Remove one after another; what fails does not keep the rest."""
    code = 0
    for run in runs:
        path = Path(run.path)
        why = refusal(read_run(path), force=force)  # It may have been resumed since it was listed.
        try:
            if not why:
                remove(path)
        except OSError as error:
            why = f"cannot remove {error.filename or path}: {error.strerror or error}"
        if why:
            print(f"dtk: {clean(why)}", file=sys.stderr)
            code = USER_ERROR
        else:
            print(f"removed {clean(path)}", flush=True)
    return code
