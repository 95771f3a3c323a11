"""Creates and closes the run folder. The only place that names runs and writes status.json."""

import datetime
import errno
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.artifacts import Failure, RunPaths, State, Status, read_status, write_json
from diagnostics.contract.files import replacing
from diagnostics.contract.origins import Origins, at_launch, dumps
from diagnostics.contract.secrets import masked
from dtk.config.schema import Config
from dtk.errors import DtkError


def now() -> str:
    """Return the current UTC time in ISO 8601, with a resolution of seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def name_run(config: Config, world_size: int) -> str:
    """Return a new run name, `<date>-<time>-<model>-<strategy>[-<dimension><degree>...]-w<world>-<4 hex>`."""
    parallel = config.parallel
    degrees = [f"{name}{getattr(parallel, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(parallel, name) > 1]
    return stamped("-".join((config.model.name, config.strategy.name, *degrees)), world_size)


def stamped(job: str, world_size: int) -> str:
    """Return a new run name, `<date>-<time>-<job>-w<world>-<4 hex>`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{job}-w{world_size}-{secrets.token_hex(2)}"


def create(folder: Path) -> RunPaths:
    """Create a run folder, named by `name_run` or `stamped`; DtkError if the folder cannot be created or written."""
    with writing(folder.parent):
        folder.mkdir(parents=True, mode=0o755)  # Before the umask: never writable by others (`dtk.config.trust`).
    return RunPaths(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an OSError from writing below a runs folder that is full or read-only into a DtkError of one line."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> DtkError:
    """Return the error for a runs folder that cannot be written."""
    why = {errno.ENOSPC: "the disk is full", errno.EROFS: "it is read-only", errno.EACCES: "no permission"}
    reason = why.get(error.errno or 0, error.strerror or str(error))
    return DtkError(f"cannot write to the runs folder {folder}", reason, "choose another: runs_folder=/path")


def configuration(paths: RunPaths, plain: dict[str, Any], overrides: list[str], origins: Origins) -> dict[Path, str]:
    """Return the content of config.yaml, overrides.yaml and origins.json, with secrets masked."""
    return {
        paths.config: yaml.safe_dump(masked(plain), sort_keys=False),
        paths.overrides: yaml.safe_dump(masked(overrides)),
        paths.origins: dumps(at_launch(origins, plain)),
    }


def describe(
    paths: RunPaths, manifest: dict[str, Any], plain: dict[str, Any], overrides: list[str], origins: Origins
) -> None:
    """Write manifest.json, config.yaml, overrides.yaml and origins.json, each atomically.

    Secrets are masked in all of them. A resumed run already has them. DtkError if the folder is full or read-only.
    """
    with writing(paths.root):
        write_json(paths.manifest, manifest)
        for path, text in configuration(paths, plain, overrides, origins).items():
            with replacing(path) as aside:
                aside.write_text(text, encoding="utf-8")


def begin(paths: RunPaths, attempt: int) -> None:
    """Write the status of a new attempt; DtkError if the folder is full or read-only."""
    started = now()
    with writing(paths.root):
        write_json(paths.status, Status(state="running", attempt=attempt, started=started, updated=started))


def close(
    paths: RunPaths,
    state: State,
    exit_code: int,
    *,
    reason: str = "",
    step: int | None = None,
    failure: Failure | None = None,
) -> Status:
    """Write the final status of the run and return it; a full disk must not hide it."""
    try:
        status = read_status(paths.status)
    except (OSError, ValueError):
        status = Status(state="running")
    if step is None:  # For a failed run, the attempt before the one that failed.
        step = status.step if failure is None or failure.step is None else max(0, failure.step - 1)
    status = replace(status, state=state, exit_code=exit_code, reason=reason, step=step, failure=failure, updated=now())
    try:
        write_json(paths.status, status)
    except OSError as error:
        with suppress(OSError):  # The output may be on the same disk.
            print(f"dtk: could not write {paths.status}: {error.strerror}", flush=True)
    return status
