"""`dtk rm`: lists run folders, asks, and removes them. `dtk.runs.remove` decides what may be removed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnostics.contract.formatting import bytes_text, clean, command, counted
from diagnostics.report import lines
from diagnostics.report.runs import listing
from diagnostics.runs.find import Run, read_run
from dtk.console import output
from dtk.console.progress import Busy
from dtk.errors import USER_ERROR, Errors
from dtk.runs.find import add_selection, check_selection, find, runs_in, selected, selects
from dtk.runs.remove import refusal, remove, size_of

_errors = Errors(__file__)
DECLINED = 1  # Exit code if the user declined.
add_more = add_selection


def run(arguments: argparse.Namespace) -> int:
    """List the selected runs, ask for confirmation, and remove them; DtkError if a run does not exist or may not be
    removed, or there is no terminal to ask for confirmation.
    """
    if bool(arguments.runs) == selects(arguments):
        row = "both" if arguments.runs else "no_run"
        raise _errors(row, named=command("rm", "last"), selected=command("rm", "--failed"))
    asks = not arguments.yes and not arguments.dry_run
    refused: list[str] = []
    if arguments.runs:
        runs = _named(arguments)
    else:  # Those that match the options and may be removed, and why other matches may not.
        check_selection(arguments)
        chosen = selected(runs_in(arguments.folder, f"{command('rm', '--folder')} FOLDER"), arguments)
        reasons = [(run, refusal(run, force=arguments.force)) for run in chosen]
        runs, refused = [run for run, why in reasons if not why], [why for _, why in reasons if why]
    _errors.refuse({"no_terminal": asks and (sys.stdin is None or not sys.stdin.isatty())})
    for why in refused:
        print(f"kept: {clean(why)}", file=sys.stderr)
    if not runs:
        print("nothing to remove", file=sys.stderr)
        return 0
    output.put(lines.render(listing(runs), columns=output.columns(), colour=output.colours()))
    with Busy(f"counting the files of {counted(len(runs), 'run')}"):
        sizes = [size_of(Path(run.path)) for run in runs]
    files, size_bytes = sum(size.files for size in sizes), sum(size.bytes for size in sizes)
    of_runs = f"{counted(len(runs), 'run')}, {counted(files, 'file')}"
    output.put(f"{of_runs}, {bytes_text(size_bytes)} ({size_bytes:,} bytes)\n")
    if arguments.dry_run:
        return 0
    if asks:
        question = f"remove {counted(len(runs), 'run')} ({bytes_text(size_bytes)}) permanently? [y/N] "
        print(question, end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
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
        why = refusal(run, force=arguments.force)
        _errors.refuse({"refused": why}, why=clean(why))
    return list(runs.values())


def _remove(runs: Sequence[Run], force: bool) -> int:
    """Remove one run after another; a failure does not affect the rest."""
    code = 0
    for run in runs:
        path = Path(run.path)
        why = refusal(read_run(path), force=force)  # The run may have been resumed since it was listed.
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
