"""Finds run folders and reads how each stands, for `dtk ls` and `dtk show`. Never fails on a damaged one.

Reads only what it needs: status.json, summary.json and the end of metrics.jsonl, so a listing is linear
in the number of runs, whatever their length.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diagnostics.artifacts import RunPaths, Status, read_status
from diagnostics.processes import still_runs

_TAIL_BYTES = 64 * 1024
_STEP_KEYS = ("loss", "step")


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder at a glance."""

    id: str
    path: str
    state: str
    """A state of status.json, `lost` (it says running, but its process is gone) or `damaged`."""
    step: int | None = None
    """Last step that was logged or reported."""
    loss: float | None = None
    tokens_per_s: float | None = None
    age_s: float | None = None
    """Seconds since the run began."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, one line each."""


@dataclass(frozen=True, slots=True)
class Details:
    """Everything `dtk show` says about one run."""

    run: Run
    status: Status | None
    log: str | None
    """Path of the failing rank's log."""
    summary: dict[str, Any]
    last_metrics: dict[str, Any]
    overrides: list[str]
    recorded: dict[str, int]
    """Kind of record -> number of files."""

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class NoSuchRunError(Exception):
    """No run folder, or several, by that name. The message is one line."""


def list_runs(folder: Path) -> list[Run]:
    """All runs in a folder, newest first.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    runs = [read_run(folder / name) for name in names if looks_like_run(folder / name)]
    far = float("inf")
    return sorted(runs, key=lambda run: (far if run.age_s is None else run.age_s, run.id))


def find_run(name: str, folder: Path = Path("runs")) -> Path:
    """A run folder by its path, its id, the unique beginning of its id, or `last` for the newest.

    Raises:
        NoSuchRunError: none or several.
    """
    for path in (Path(name), folder / name):
        if path.is_dir() and name not in ("", ".", ".."):
            if not looks_like_run(path):
                raise NoSuchRunError(f"{path} is not a run folder: it has neither status.json nor manifest.json")
            return path
    if name == "last":
        runs = list_runs(folder) if folder.is_dir() else []
        if not runs:
            raise NoSuchRunError(f"there is no last run: no runs in {folder}")
        return Path(runs[0].path)
    begin = sorted(p.name for p in folder.glob("*") if p.name.startswith(name) and p.is_dir()) if name else []
    if len(begin) == 1:
        return folder / begin[0]
    if begin:
        raise NoSuchRunError(f'several runs begin with "{name}": {", ".join(begin[:5])}')
    raise NoSuchRunError(f'no run "{name}" here or in {folder}')


def read_run(path: Path) -> Run:
    """How one run stands."""
    paths = RunPaths(path)
    problems: list[str] = []
    status = _status(paths, problems)
    last = last_metrics(paths.metrics, problems)
    figures = _mapping(_json(paths.summary, problems).get("figures"))
    step = last.get("step") if status is None or status.step is None else status.step
    return Run(
        id=path.name,
        path=str(path),
        state="damaged" if status is None else "lost" if _lost(paths, status) else str(status.state),
        step=_number(step, int),
        loss=_number(last.get("loss"), float),
        tokens_per_s=_number(figures.get("tokens_per_s", last.get("tokens_per_s")), float),
        age_s=_age_s(status, path),
        problems=problems,
    )


def read_details(path: Path) -> Details:
    """Status, failure, figures and what was recorded."""
    paths = RunPaths(path)
    ignored: list[str] = []
    status = _status(paths, ignored)
    run = read_run(path)
    if paths.manifest.exists():
        _json(paths.manifest, run.problems)
    if run.state != "running" and status is not None and status.step and not paths.metrics.exists():
        run.problems.append("no metrics.jsonl (record=off, or removed)")
    failure = status.failure if status else None
    return Details(
        run=run,
        status=status,
        log=str(path / failure.log) if failure and isinstance(failure.log, str) else None,
        summary=_mapping(_json(paths.summary, ignored).get("figures")),
        last_metrics=last_metrics(paths.metrics, ignored),
        overrides=_overrides(paths.overrides),
        recorded=_recorded(path),
    )


def last_metrics(path: Path, problems: list[str]) -> dict[str, Any]:
    """The last complete training record; a torn last line is skipped, as is what an evaluation wrote."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror or error}")
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and all(key in record for key in _STEP_KEYS):
            return record
    if size:
        problems.append(f"{path.name}: no complete record at its end")
    return {}


def looks_like_run(path: Path) -> bool:
    """Whether a folder has one of the records that every run begins with."""
    paths = RunPaths(path)
    return any(p.exists() for p in (paths.status, paths.manifest, paths.config))


def _status(paths: RunPaths, problems: list[str]) -> Status | None:
    try:
        status = read_status(paths.status)
    except FileNotFoundError:
        problems.append("no status.json")
    except OSError as error:
        problems.append(f"status.json: {error.strerror or error}")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        problems.append(f"status.json: {error}")
    else:
        return status
    return None


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: {error}")
        return {}
    return _mapping(value)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any, kind: type[Any]) -> Any:
    """The value as `kind`, or None when it is no number."""
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == value else None


def _lost(paths: RunPaths, status: Status) -> bool:
    """Whether a run that says `running` was started on this machine by a process that is gone."""
    if status.state != "running":
        return False
    return still_runs(_json(paths.manifest, [])) is False


def _age_s(status: Status | None, path: Path) -> float | None:
    began: float | None = None
    try:
        if status is not None and status.started:
            moment = datetime.fromisoformat(status.started)
            began = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        began = None
    if began is None:
        try:
            began = path.stat().st_mtime
        except OSError:
            return None
    return max(0.0, datetime.now(UTC).timestamp() - began)


def _overrides(path: Path) -> list[str]:
    """The items of a flat YAML list, read without a YAML library: this runs where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line[2:].strip() for line in lines if line.startswith("- ")]


def _recorded(path: Path) -> dict[str, int]:
    """Folder of records -> files in it; checkpoints count as one each."""
    counts: dict[str, int] = {}
    for folder in _folders(path):
        try:
            depth_one = sum(1 for entry in os.scandir(folder) if not entry.name.startswith("."))
        except OSError:
            continue
        if depth_one:
            counts[folder.name] = depth_one
    return counts


def _folders(path: Path) -> Iterator[Path]:
    names = (
        "events",
        "heartbeat",
        "flight",
        "stacks",
        "traces",
        "memory",
        "telemetry",
        "logs",
        "checkpoints",
        "report",
    )
    return (path / name for name in names if (path / name).is_dir())
