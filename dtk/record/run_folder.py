"""Creates and closes the run folder: the only place that names runs, and writes status.json and error.json."""

import datetime
import errno
import secrets
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.artifacts import Failure, RunPaths, State, Status, read_status, write_json
from diagnostics.contract.files import replacing
from diagnostics.contract.origins import Origins, at_launch, dumps
from diagnostics.contract.secrets import masked, masked_text
from dtk.config.schema import Config
from dtk.errors import USER_ERROR, DtkError
from dtk.parallel.regions import failed_in


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


def failure_record(error: BaseException, rank: int, attempt: int) -> dict[str, object]:
    """Return the content of error.json."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    record: dict[str, object] = {"schema_version": 1, "rank": rank, "attempt": attempt, "type": type(error).__name__}
    record |= {"message": str(error), "region": failed_in(), "time_s": time.time()}
    record |= {"file": last and last.filename, "line": last and last.lineno, "function": last and last.name}
    record |= {"user_error": isinstance(error, DtkError)}
    return {**record, "traceback": "".join(traceback.format_exception(error))}


def failure_reason(record: Mapping[str, Any]) -> str:
    """Return the content of error.json in one line: `ValueError: no such file (train.py:12)`."""
    place = f" ({Path(str(record['file'])).name}:{record['line']})" if record.get("file") else ""
    return f"{record.get('type')}: {' '.join(str(record.get('message')).split())[:300]}{place}"


def write_failure(error: BaseException, path: Path, rank: int, attempt: int) -> int:
    """Write error.json, before any teardown; return 2 for a DtkError, else print the traceback and return 1."""
    try:
        write_json(path, failure_record(error, rank, attempt))
    except OSError as problem:
        print(f"dtk: could not write {path.name}: {problem}", file=sys.stderr)
    if isinstance(error, DtkError):
        return USER_ERROR
    print(masked_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    sys.stderr.flush()
    return 1
