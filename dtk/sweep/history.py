"""What the runs of a sweep recorded, as a search reads it: the numbers of metrics.jsonl and summary.json."""

from contextlib import suppress
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import open_regular, read_json
from diagnostics.runs.records import objects
from dtk.sweep.folder import Sweep, Trial
from dtk.sweep.runner import STOPPED_EARLY
from dtk.sweep.search import Tried

MOST_BYTES = 32 * 1024 * 1024  # Of metrics.jsonl; a longer one is read up to there.
_STATES = {"finished": "finished", "running": "running", STOPPED_EARLY: "killed", "preempted": "preempted"}


def tried(sweep: Sweep, but: Trial | None = None) -> list[Tried]:
    """Every point with what its last run recorded, in the order of the points.

    Args:
        sweep: of which.
        but: a run to leave out.
    """
    lasts = ((point, sweep.last(point.index, 0)) for point in sweep.points)
    return [look(trial, point.values) for point, trial in lasts if trial is not None and trial is not but]


def look(trial: Trial, values: dict[str, Any]) -> Tried:
    """One run as it stands now: the complete records of metrics.jsonl and the figures of summary.json, numbers only."""
    history: list[dict[str, Any]] = []
    figures: Any = {}
    if trial.run is not None:
        paths = RunPaths(trial.run)
        with suppress(OSError), open_regular(paths.metrics) as file:
            history = [_numbers(record) for record in objects(file.read(MOST_BYTES).split(b"\n"))]
        with suppress(OSError, ValueError, KeyError, TypeError):
            figures = read_json(paths.summary)["figures"]
    summary = _numbers(figures) if isinstance(figures, dict) else {}
    return Tried(f"{trial.point}", values, _STATES.get(trial.state, "failed"), history, summary)


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
