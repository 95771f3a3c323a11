"""Finds the runs that a command names or selects by options, and checks that they can be used."""

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import clean, command
from diagnostics.contract.suggest import did_you_mean
from diagnostics.runs.find import FAILED, RUNS, STATES, NoSuchRunError, Run, find_run, list_runs, read_run
from dtk.errors import DtkError, refused

_LAST = float("inf")  # Sorts after every value.
SORTS: dict[str, Callable[[Run], Any]] = {
    "age": lambda run: _LAST if run.age_s is None else run.age_s,
    "loss": lambda run: _LAST if run.loss is None else run.loss,
    "name": lambda run: run.id,
    "state": lambda run: run.state,
    "steps": lambda run: _LAST if run.step is None else -run.step,
    "tokens/s": lambda run: _LAST if run.tokens_per_s is None else -run.tokens_per_s,
}
"""Sort keys of runs, the best or newest first; runs without the value come last."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def find(name: str, folder: Path = RUNS) -> Path:
    """Return a run's folder by path, id, unique prefix of its id, or `last`; DtkError if none or several match."""
    try:
        return find_run(name, folder)
    except NoSuchRunError as error:
        raise DtkError(clean(error), fix=f"give a path, a run id or last; {command('ls')} lists the runs") from error


def matching(name: str, folder: Path = RUNS) -> list[str]:
    """Return the folders that a pattern such as `*ddp*` matches, here or in `folder`; any other name as it is."""
    for path in (Path(name), folder / name) if set("*?[") & {*name} and not Path(name).exists() else ():
        with suppress(OSError, ValueError):  # It is no valid pattern.
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            if folders := sorted(str(match) for match in matches if match.is_dir()):
                return folders
    return [name]


def find_readable(name: str, folder: Path = RUNS) -> Run:
    """Return the run of that name; DtkError if it does not exist, is damaged or of a newer dtk."""
    run = read_run(find(name, folder))
    if run.unreadable:
        fix = f"{command('diagnose', run.path)} reads what is left of it" if run.state == "damaged" else "upgrade dtk"
        raise DtkError(clean(run.unreadable), fix=fix)
    return run


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--state`, `--failed` and `--older-than`."""
    states = f"only these states: {', '.join(STATES)}"
    parser.add_argument("--state", type=_states, action="extend", default=[], metavar="S[,S]", help=states)
    parser.add_argument("--failed", action="store_true", help=f"the same as --state {','.join(FAILED)}")
    age = "only runs whose status is older than AGE: 90s, 5m, 3h, 7d, 2w"
    parser.add_argument("--older-than", type=_seconds, metavar="AGE", help=age)


def selects(arguments: argparse.Namespace) -> bool:
    """Return whether any of those options is given."""
    return bool(arguments.state or arguments.failed or arguments.older_than is not None)


def check_selection(arguments: argparse.Namespace) -> None:
    """Reject `--failed` with `--state` (DtkError): which of them counts is ambiguous, and runs may be removed."""
    if arguments.failed and arguments.state:
        both = ",".join(dict.fromkeys((*arguments.state, *FAILED)))
        what, why = "--failed and --state both name states", f"--failed is --state {','.join(FAILED)}"
        raise DtkError(what, why, f"choose one; for the states of both: --state {both}")


def selected(runs: Sequence[Run], arguments: argparse.Namespace) -> list[Run]:
    """Return the runs that match all options given; DtkError if states are given in two ways."""
    check_selection(arguments)
    states = {*arguments.state, *(FAILED if arguments.failed else ())}
    chosen = [run for run in runs if not states or run.state in states]
    if (quiet_s := arguments.older_than) is None:
        return chosen
    return [run for run in chosen if run.quiet_s is not None and run.quiet_s > quiet_s]


def runs_in(folder: Path, name: str) -> list[Run]:
    """Return the runs of a folder, newest first, none of an absent default folder; DtkError if it cannot be read."""
    if folder == RUNS and not folder.exists():
        return []
    with refused(f"cannot list {folder}", name, ValueError):
        return list_runs(folder)


def _states(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in STATES:
            near = did_you_mean(name, STATES)
            raise argparse.ArgumentTypeError(f"{name!r} is not a state; {near or 'states: ' + ', '.join(STATES)}")
    if not names:
        raise argparse.ArgumentTypeError(f"no state is given; states: {', '.join(STATES)}")
    return names


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 90s, 5m, 3h, 7d or 2w")
    return float(match[1]) * _UNITS_S[match[2]]
