"""Finds the run that was named, and checks that it can be used. Shared by all commands that take a RUN."""

from contextlib import suppress
from pathlib import Path

from diagnostics.contract.formatting import clean
from diagnostics.contract.invocation import command
from diagnostics.runs.find import RUNS, NoSuchRunError, Run, find_run, read_run
from dtk.errors import DtkError


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
