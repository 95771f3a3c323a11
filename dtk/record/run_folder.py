"""Makes the run folder and closes it: the only place that names runs and writes status.json."""

import datetime
import errno
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.artifacts import Failure, RunPaths, State, Status, read_status, write_json
from diagnostics.contract.origins import Origins, at_launch, dumps
from dtk.config.schema import Config
from dtk.errors import DtkError


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def name_run(config: Config, world_size: int) -> str:
    """Return a new run name, `<date>-<time>-<model>-<strategy>-w<world>-<4 hex>`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{config.model.name}-{config.strategy.name}-w{world_size}-{secrets.token_hex(2)}"


def create(config: Config, world_size: int) -> RunPaths:
    """Make `<runs_folder>/<name>`.

    Raises:
        DtkError: the folder cannot be made or written.
    """
    paths = RunPaths(Path(config.runs_folder) / name_run(config, world_size))
    try:
        paths.root.mkdir(parents=True, mode=0o755)  # Less the umask: never writable by others (`dtk.config.trust`).
    except OSError as error:
        raise unwritable(paths.root.parent, error) from error
    return paths


def unwritable(folder: Path, error: OSError) -> DtkError:
    """Return the error for a runs folder that cannot be written."""
    why = {errno.ENOSPC: "the disk is full", errno.EROFS: "it is read-only", errno.EACCES: "no permission"}
    reason = why.get(error.errno or 0, error.strerror or str(error))
    return DtkError(f"cannot write to the runs folder {folder}", reason, "choose another: runs_folder=/path")


def describe(
    paths: RunPaths, manifest: dict[str, Any], plain: dict[str, Any], overrides: list[str], origins: Origins
) -> None:
    """Write manifest.json, config.yaml, overrides.yaml and origins.json, each whole or not at all.

    A resumed run has them already.

    Raises:
        DtkError: the folder is full or read-only.
    """
    try:
        write_json(paths.manifest, manifest)
        _replace(paths.config, yaml.safe_dump(plain, sort_keys=False))
        _replace(paths.overrides, yaml.safe_dump(overrides))
        _replace(paths.origins, dumps(at_launch(origins, plain)))
    except OSError as error:
        raise unwritable(paths.root, error) from error


def _replace(path: Path, text: str) -> None:
    """Write aside, then rename: a disk that is full must not cost the file that is there."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def begin(paths: RunPaths, attempt: int) -> None:
    """Open the status of an attempt.

    Raises:
        DtkError: the folder is full or read-only.
    """
    started = now()
    try:
        write_json(paths.status, Status(state="running", attempt=attempt, started=started, updated=started))
    except OSError as error:
        raise unwritable(paths.root, error) from error


def close(
    paths: RunPaths,
    state: State,
    exit_code: int,
    *,
    reason: str = "",
    step: int | None = None,
    failure: Failure | None = None,
) -> None:
    """Write how the run ended; a disk that is full by now must not hide that."""
    try:
        status = read_status(paths.status)
    except (OSError, ValueError):
        status = Status(state="running")
    ended = replace(
        status,
        state=state,
        exit_code=exit_code,
        reason=reason,
        step=status.step if step is None else step,
        failure=failure,
        updated=now(),
    )
    try:
        write_json(paths.status, ended)
    except OSError as error:
        with suppress(OSError):  # The output may go to the same disk.
            print(f"dtk: could not write {paths.status}: {error.strerror}", flush=True)
