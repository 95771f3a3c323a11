"""Finds run folders and reads their state, for all commands that accept a run, and whether the process of a run still
runs here: by its id and start time, as ids are reused. Never fails on a damaged one.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import time
from typing import Any, get_args

from diagnostics.contract.artifacts import SCHEMA_VERSION, NewerSchemaError, RunPaths, State, Status, as_status
from diagnostics.contract.files import stat_fields
from diagnostics.runs.records import as_mapping, content, decoded, last_metrics, mapping, number, reason, whole_number

RUNS = Path("runs")  # Default folder of runs.
STATES = (*get_args(State), "lost", "newer", "damaged")  # Values of `Run.state`.
FAILED = ("failed", "hung", "oom", "lost")  # States of runs that failed.
_FOLDERS = (
    "events", "heartbeat", "flight", "stacks", "traces", "memory", "telemetry", "logs", "checkpoints", "report",
)  # fmt: skip
"""Folders of records."""
PROC = Path("/proc")
_STATE, _PARENT, _START = 0, 1, 19
"""Places after the command's name in /proc/PID/stat: fields 3, 4 and 22 of proc_pid_stat(5)."""


@dataclass(slots=True)
class Run:
    """Summary of one run folder."""

    id: str
    path: str
    state: str
    """A state of status.json, `lost` (it says running, but its process is gone), `newer` (written by a newer dtk,
    which alone can read it) or `damaged`."""
    step: int | None = None
    """Last step in the metrics or the status."""
    loss: float | None = None
    tokens_per_s: float | None = None
    age_s: float | None = None
    """Seconds since the start of the run."""
    quiet_s: float | None = None
    """Seconds since the last update of its status."""
    problems: list[str] = field(default_factory=list)
    """Unreadable records, one line each."""

    @property
    def unreadable(self) -> str:
        """Return why the run cannot be used, in one line; empty if it can."""
        if self.state == "damaged":
            return f"{self.path} is damaged: {'; '.join(self.problems)}"
        return f"{self.path} was written by a newer dtk: {'; '.join(self.problems)}" if self.state == "newer" else ""


@dataclass(frozen=True, slots=True)
class Details:
    """Details of one run for `dtk show`."""

    run: Run
    status: Status | None
    log: str | None
    """Path of the failing rank's log."""
    summary: dict[str, Any]
    last_metrics: dict[str, Any]
    overrides: list[str]
    recorded: dict[str, int]
    """Kind of record -> number of files."""
    launcher: str = ""
    """Launcher in the manifest; `own` for a script's own loop with `dtk.record.attach`."""


class NoSuchRunError(Exception):
    """No run folder, or several, match a name. The message is one line."""


def list_runs(folder: Path) -> list[Run]:
    """Return all runs in a folder, newest first; raise OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    now_s = time()
    runs = (_read(os.path.join(folder, name), name, now_s) for name in names)  # noqa: PTH118 - Path is 3x as slow
    return sorted(filter(None, runs), key=lambda run: (inf if run.age_s is None else run.age_s, run.id))


def find_run(name: str, folder: Path = RUNS) -> Path:
    """Find a run folder by path, id, unique prefix of its id, or `last`; NoSuchRunError if none or several match."""
    for path in (Path(name), folder / name):
        with suppress(OSError, ValueError):  # The name is invalid for the file system.
            if name not in ("", ".", "..") and path.is_dir():
                if looks_like_run(path):
                    return path
                raise NoSuchRunError(f"{path} is not a run folder: it has neither status.json nor manifest.json")
    begin: list[str] = []
    with suppress(OSError):
        if name == "last":
            runs = list_runs(folder) if folder.is_dir() else []
            if not runs:
                raise NoSuchRunError(f"there is no last run: no runs in {folder}")
            return Path(runs[0].path)
        inside = (path for path in folder.iterdir() if name and path.name.startswith(name))
        begin = sorted(path.name for path in inside if path.is_dir() and looks_like_run(path))
    if len(begin) == 1:
        return folder / begin[0]
    if begin:
        raise NoSuchRunError(f'several runs begin with "{name}": {", ".join(begin[:5])}')
    where = "" if "/" in name else f" here or in {folder}"
    raise NoSuchRunError(f'there is no run "{name}"{where}')


def read_run(path: Path) -> Run:
    """Return the state of one run; a folder without records of a run is a damaged run."""
    absent = Run(id=path.name, path=str(path), state="damaged", problems=["no status.json"])
    return _read(str(path), path.name, time()) or absent


def read_details(path: Path) -> Details:
    """Return status, failure, metrics and the recorded files."""
    paths = RunPaths(path)
    ignored: list[str] = []
    status, _ = _status(str(path), ignored)
    run = read_run(path)
    manifest = mapping(str(paths.manifest), run.problems) if paths.manifest.exists() else {}
    if run.state != "running" and status is not None and status.step and not paths.metrics.exists():
        run.problems.append("no metrics.jsonl (record=off, or removed)")
    failure = status.failure if status else None
    return Details(
        run=run,
        status=status,
        log=str(path / failure.log) if failure and isinstance(failure.log, str) else None,
        summary=as_mapping(mapping(str(paths.summary), ignored).get("figures")),
        last_metrics=last_metrics(str(paths.metrics), ignored),
        overrides=_overrides(paths.overrides),
        recorded=_recorded(path),
        launcher=str(manifest.get("launcher", "")),
    )


def looks_like_run(path: Path) -> bool:
    """Return whether a folder has status.json or manifest.json; a config.yaml alone is not specific to dtk."""
    return any(os.path.exists(path / name) for name in ("status.json", "manifest.json"))  # noqa: PTH110


def made_by_dtk(path: Path) -> bool:
    """Return whether a folder has a status.json or manifest.json in dtk's format; links are not accepted."""
    paths = RunPaths(path)
    manifest = {} if paths.manifest.is_symlink() else mapping(str(paths.manifest), [])
    if isinstance(manifest.get("schema_version"), int) and {"run_id", "argv", "config_sha256"} <= manifest.keys():
        return True
    status = {} if paths.status.is_symlink() else mapping(str(paths.status), [])
    version = status.get("schema_version")
    is_state = status.get("state") in STATES or (isinstance(version, int) and version > SCHEMA_VERSION)
    return isinstance(version, int) and is_state and {"attempt", "started", "updated", "failure"} <= status.keys()


def _read(root: str, name: str, now_s: float) -> Run | None:
    """Return the state of one run; None if the folder has no record of a run."""
    problems: list[str] = []
    status, state = _status(root, problems)
    if status is None and not looks_like_run(Path(root)):
        return None
    run = Run(name, root, state, problems=problems)
    if status is None:
        run.age_s = run.quiet_s = _since_changed(root, now_s)
        return run
    figures = as_mapping(mapping(f"{root}/summary.json", problems).get("figures"))
    run.loss, run.tokens_per_s = number(figures.get("loss")), number(figures.get("tokens_per_s"))
    run.step = whole_number(status.step)
    if None in (run.step, run.loss, run.tokens_per_s):
        last = last_metrics(f"{root}/metrics.jsonl", problems)
        run.step = whole_number(last.get("step")) if run.step is None else run.step
        run.loss = number(last.get("loss")) if run.loss is None else run.loss
        run.tokens_per_s = number(last.get("tokens_per_s")) if run.tokens_per_s is None else run.tokens_per_s
    began_s = _moment_s(status.started)
    run.age_s = _since_changed(root, now_s) if began_s is None else max(0.0, now_s - began_s)
    updated_s = _moment_s(status.updated)
    run.quiet_s = run.age_s if updated_s is None else max(0.0, now_s - updated_s)
    return run


def _status(root: str, problems: list[str]) -> tuple[Status | None, str]:
    state = "damaged"
    try:
        status = as_status(decoded(content(f"{root}/status.json")), "it")
        if status.state not in get_args(State):
            raise ValueError("it holds no state that dtk knows")
    except FileNotFoundError:
        problems.append("no status.json")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problems.append(f"status.json: {reason(error)}")
        state = "newer" if isinstance(error, NewerSchemaError) else state
    else:
        # Started on this machine, by a process that has exited.
        is_lost = status.state == "running" and still_runs(mapping(f"{root}/manifest.json", [])) is False
        return status, "lost" if is_lost else status.state
    return None, state


def _moment_s(text: Any) -> float | None:
    """Convert an ISO 8601 time to seconds since 1970; UTC if it has no zone."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _since_changed(root: str, now_s: float) -> float | None:
    try:
        return max(0.0, now_s - os.stat(root).st_mtime)  # noqa: PTH116 - as above
    except OSError:
        return None


def _overrides(path: Path) -> list[str]:
    """Return the items of a flat YAML list. No YAML library is used, as this must run without one."""
    try:
        lines = content(str(path)).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    return [line[2:].strip() for line in lines if line.startswith("- ")]


def _recorded(path: Path) -> dict[str, int]:
    """Return folder of records -> number of files in it; checkpoints count as one each."""
    counts: dict[str, int] = {}
    for name in _FOLDERS:
        with suppress(OSError):
            if count := sum(not entry.name.startswith(".") for entry in os.scandir(path / name)):
                counts[name] = count
    return counts


def process_start(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None if it has exited or is inaccessible."""
    try:
        fields = stat_fields(PROC / str(pid))
        return None if fields[_STATE] in "ZX" else int(fields[_START])
    except (ValueError, IndexError):
        return None


def suspended(pid: int, manifest: Mapping[str, Any]) -> bool:
    """Return whether a rank's process is stopped by a signal or a debugger; False if it cannot be seen here.

    Ids are reused, so the process has to be a child of the run's, which is alive here, or its sibling.
    """
    stat, of_run = stat_fields(PROC / str(pid)), manifest.get("pid")
    if len(stat) <= _PARENT or stat[_STATE] not in "Tt" or not isinstance(of_run, int):
        return False
    above = PROC / str(of_run)
    return pid == of_run or int(stat[_PARENT]) in (of_run, *map(int, stat_fields(above)[_PARENT : _PARENT + 1]))


def still_runs(manifest: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote a manifest is alive; None if that cannot be determined here.

    A manifest without `pid_start` is trusted by its `pid` alone.
    """
    pid, began = manifest.get("pid"), manifest.get("pid_start")
    from socket import gethostname  # Imported here, as few commands look for processes.

    if manifest.get("host") != gethostname() or not isinstance(pid, int):
        return None
    now = process_start(pid)
    if now is None and process_start(os.getpid()) is None:
        return None  # No such system.
    return now is not None and (not isinstance(began, int) or began == now)
