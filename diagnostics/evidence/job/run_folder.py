"""The records of a dtk run folder, read separately: a damaged one becomes a problem and does not affect the others."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from diagnostics.contract.artifacts import NewerSchemaError, RunPaths, Status, as_status, read_heartbeat
from diagnostics.contract.files import MOST_BYTES, read_json
from diagnostics.evidence.limits import Limits, load_yaml, small_json, whole
from diagnostics.evidence.logs.lines import LineReader
from diagnostics.evidence.model import Problem, RankError, RunEvidence
from diagnostics.runs.find import still_runs, suspended
from diagnostics.runs.records import mapping, objects, reason

MAX_EVENTS = 2000
"""Maximum number of lifecycle events kept per rank: the first and the last half of them."""
EVENT = b'"kind": "event"'
SKIPPED = frozenset({"checkpoints", "export", "events", "heartbeat", "report", "verify", "wandb", "tensorboard"})
"""Folders of a run without evidence of their own, or with records that are read here."""
_RANK = re.compile(r"rank_(\d{1,7})\.jsonl?")
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")


def is_run(folder: Path) -> bool:
    """Return whether a folder is a dtk run: it has one of the records, with dtk's schema."""
    paths = RunPaths(folder)
    for path, keys in ((paths.status, {"state", "schema_version"}), (paths.manifest, {"run_id", "schema_version"})):
        if mapping(str(path), []).keys() >= keys:
            return True
    # Damaged records still show whose folder it is, if the others are there.
    records = (paths.status, paths.manifest, paths.config, paths.overrides)
    return sum(path.is_file() for path in records) >= len(records) - 1


def runs_in(folder: Path) -> list[str]:
    """Return the names of runs directly in a folder, newest last (names begin with the time)."""
    with suppress(OSError):
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and is_run(path))
    return []


def last_attempt(folder: Path) -> int:
    """Return the highest attempt that has logs; -1 without any."""
    with suppress(OSError):
        names = [_ATTEMPT.fullmatch(path.name) for path in (folder / "logs").iterdir()]
        return max((int(match[1]) for match in names if match), default=-1)
    return -1


def read(folder: Path, limits: Limits, problems: list[Problem]) -> RunEvidence:
    """All small records of a run. Never raises: what is damaged is missing, with a line in `problems`."""
    paths = RunPaths(folder)
    status = _status(paths, problems)
    config = _mapping(paths.config, problems, partial(_yaml, limits=limits))
    read_json = partial(small_json, limits=limits, most_bytes=MOST_BYTES)
    manifest = _mapping(paths.manifest, problems, read_json)
    running = status is not None and status.state == "running"
    alive = still_runs(manifest) if running else None
    if running and alive is not False:
        problems.append(Problem("run", "status.json", "still_going"))
    heartbeats = {
        rank: beat
        for rank, path in of_ranks(folder / "heartbeat", limits)
        if (beat := read_heartbeat(path) if path.stat().st_size <= 4096 else None) is not None
    }
    attempt = max(status.attempt if status else 0, last_attempt(folder))
    return RunEvidence(
        root=folder,
        status=status,
        config=config,
        manifest=manifest,
        summary=_mapping(paths.summary, problems, read_json),
        plan=_mapping(paths.plan, problems, read_json),
        heartbeats=heartbeats,
        events=dict(_all_events(folder / "events", attempt, limits, problems)),
        attempt=attempt,
        lost=alive is False,
        suspended=tuple(
            rank
            for rank, beat in sorted(heartbeats.items())
            if alive and beat.host == manifest.get("host") and suspended(beat.pid, manifest)
        ),
        seen=alive is not None or not running,
    )


def failure_error(status: Status | None) -> RankError | None:
    """Return the failure recorded by the launcher, which is the only record of a rank that was killed."""
    failure = status.failure if status else None
    if failure is None:
        return None
    return RankError(
        rank=failure.rank,
        file="status.json",
        line=0,
        type=failure.type,
        message=failure.message if failure.type else failure.reason,
        signal=failure.signal,
        exit_code=failure.exit_code,
        step=failure.step,
        region=failure.region,
        vanished=failure.kind == "killed" and failure.signal is None and failure.exit_code is None,
    )


def damaged(file: str, why: Exception | str) -> Problem:
    """Return the problem of a record of a run that cannot be read."""
    kind: Literal["damaged", "newer"] = "newer" if isinstance(why, NewerSchemaError) else "damaged"
    return Problem("run", file, f"{kind}_record", reason=kind, figures={"why": reason(why)})


def _status(paths: RunPaths, problems: list[Problem]) -> Status | None:
    try:
        if paths.status.is_symlink():
            raise ValueError("not a status record")
        return as_status(read_json(paths.status), "it")
    except FileNotFoundError:
        problems.append(Problem("run", "status.json", "no_status"))
    except (OSError, ValueError, RecursionError) as problem:
        problems.append(damaged("status.json", problem))
    return None


def _mapping(path: Path, problems: list[Problem], read_file: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {} if path.is_symlink() else read_file(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        problems.append(damaged(path.name, problem))
        return {}


def _yaml(path: Path, limits: Limits) -> dict[str, Any]:
    data = whole(path, limits)
    if len(data) > MOST_BYTES:
        raise ValueError(f"over {MOST_BYTES >> 20} MiB")
    value = load_yaml(data, limits)
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    return value


def _all_events(
    folder: Path, attempt: int, limits: Limits, problems: list[Problem]
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for rank, path in of_ranks(folder, limits):
        events: list[dict[str, Any]] = []
        try:
            for event in objects(line for _, line in LineReader(path, limits, (EVENT,), lambda: False).lines()):
                if event.get("kind") == "event" and event.get("attempt", attempt) == attempt:
                    events.append(event)
                if len(events) > MAX_EVENTS:
                    del events[MAX_EVENTS // 2]
        except (OSError, ValueError) as problem:
            problems.append(Problem("run", f"events/{path.name}", reason(problem)))
        yield rank, events


def of_ranks(folder: Path, limits: Limits) -> list[tuple[int, Path]]:
    """Return (rank, its file) of a folder with a record of each rank, ascending; empty if it cannot be listed."""
    files: list[tuple[int, Path]] = []
    try:
        for path in () if folder.is_symlink() else folder.iterdir():
            match = _RANK.fullmatch(path.name)
            if match and len(files) < limits.files and not path.is_symlink() and path.is_file():
                files.append((int(match[1]), path))
    except OSError:
        return []
    return sorted(files)
