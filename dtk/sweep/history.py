"""What the runs of a sweep recorded, as a search reads it: the numbers of metrics.jsonl and summary.json."""

from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import open_regular, read_json
from diagnostics.runs.records import objects
from dtk.sweep.folder import Sweep, Trial
from dtk.sweep.runner import STOPPED_EARLY
from dtk.sweep.search import Tried

MOST_BYTES = 32 * 1024 * 1024
"""Of metrics.jsonl; a longer one is read up to there."""
_STATES = {"finished": "finished", "running": "running", STOPPED_EARLY: "killed", "preempted": "preempted"}


def tried(sweep: Sweep, but: Trial | None = None) -> list[Tried]:
    """Every point with what its last run recorded, in the order of the points.

    Args:
        sweep: of which.
        but: a run to leave out.
    """
    found = []
    for point in sweep.points:
        trial = sweep.last(point.index, 0)
        if trial is not None and trial is not but:
            found.append(look(trial, point.values))
    return found


def look(trial: Trial, values: dict[str, Any]) -> Tried:
    """One run as it stands now."""
    name = f"{trial.point}"
    state = _STATES.get(trial.state, "failed")
    if trial.run is None:
        return Tried(name, values, state)
    paths = RunPaths(trial.run)
    return Tried(name, values, state, _history(paths.metrics), _summary(paths.summary))


def _history(path: Path) -> list[dict[str, Any]]:
    """Complete records of metrics.jsonl, numbers only."""
    try:
        with open_regular(path) as file:
            return [_numbers(record) for record in objects(file.read(MOST_BYTES).split(b"\n"))]
    except OSError:
        return []


def _summary(path: Path) -> dict[str, Any]:
    try:
        figures = read_json(path)["figures"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return _numbers(figures) if isinstance(figures, dict) else {}


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
