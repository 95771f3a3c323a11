"""Losses and gradient norms over the steps: metrics.jsonl of a dtk run, read as a stream. Decides nothing."""

import math
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct, field

from diagnostics.contract.artifacts import RunPaths
from diagnostics.evidence.limits import Limits, lines_of
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.runs.records import objects

FIGURES = ("loss", "grad_norm", "validation_loss")
_PIPELINE = ("pipeline_bubble", "pipeline_bubble_ideal", "pipeline_busiest", "pipeline_imbalance")
LAYOUT = ("step_time_s", *_PIPELINE, "expert_rank_load")
"""Figures of which the last `KEPT` are kept: how a layout did."""
KEPT = 200


class BadFigure(Struct, frozen=True):
    """A figure that is NaN or infinite."""

    figure: str
    value: str
    """`nan`, `inf` or `-inf`."""
    step: int
    line: int
    """In metrics.jsonl, from 1."""
    step_before: int | None
    """Last step with a record in which it was finite."""


class Metrics(Struct):
    """What the records say."""

    records: int = 0
    """With a training loss."""
    last_step: int | None = None
    bad: dict[str, BadFigure] = field(default_factory=dict)
    """Figure -> its first bad value."""
    lowest: float = math.inf
    """Smallest finite loss before the first bad one, in nats."""
    last_finite: float | None = None
    """Newest finite loss before the first bad one."""
    recovered: bool = False
    """Whether a finite loss followed a bad one."""
    recent: dict[str, deque[float]] = field(default_factory=dict)
    """Name of `LAYOUT` -> its last finite values, the oldest first."""

    def usual(self, name: str) -> float | None:
        """Return the median of the later half of a figure of `LAYOUT`; None where it was not recorded."""
        values = list(self.recent.get(name, ()))
        return median(values[len(values) // 2 :]) if values else None


class Figures(Struct, frozen=True):
    """What the causes of numerics are decided from."""

    evidence: Evidence
    metrics: Metrics | None
    """None: there is no metrics.jsonl, or it is damaged."""


def read(evidence: Evidence) -> Figures:
    """Read the metrics of a run; damage is a problem under coverage."""
    metrics = None
    if evidence.run is not None:
        path = RunPaths(evidence.run.root).metrics
        try:
            if not path.is_symlink() and path.is_file():
                metrics = read_metrics(path, evidence.limits)
        except (OSError, ValueError) as problem:
            what = " ".join(str(problem).split())[:200]
            evidence.problems.append(Problem("metrics", evidence.relative(path), what))
    return Figures(evidence, metrics)


def read_metrics(path: Path, limits: Limits) -> Metrics:
    """Go over all records once; lines that are not records are skipped.

    Raises:
        OSError: it cannot be read.
        ValueError: it is over a limit; damaged.
    """
    metrics = Metrics()
    finite_at: dict[str, int] = {}
    for number, line in enumerate(lines_of(path, limits), 1):
        for record in objects([line]):
            if isinstance(record.get("step"), int):
                _take(metrics, record, number, finite_at)
    return metrics


def _take(metrics: Metrics, record: dict[str, Any], number: int, finite_at: dict[str, int]) -> None:
    """Add one record, the line of which has this number; `finite_at`: figure -> last step in which it was finite."""
    step, loss = record["step"], _figure(record, "loss")
    if loss is not None and metrics.last_step is not None and step <= metrics.last_step:
        # Restarted from a checkpoint: these steps replace the ones before.
        metrics.bad, metrics.recovered, metrics.lowest, metrics.last_finite = {}, False, math.inf, None
        finite_at.clear()
    for figure in FIGURES:
        if (value := _figure(record, figure)) is None:
            continue
        if math.isfinite(value):
            finite_at[figure] = step
        elif figure not in metrics.bad:
            metrics.bad[figure] = BadFigure(figure, word(value), step, number, finite_at.get(figure))
    for name in LAYOUT:
        if (value := _figure(record, name)) is not None and math.isfinite(value):
            metrics.recent.setdefault(name, deque(maxlen=KEPT)).append(value)
    if loss is not None:
        metrics.records += 1
        metrics.last_step = step
        if math.isfinite(loss) and "loss" in metrics.bad:
            metrics.recovered = True
        elif math.isfinite(loss):
            metrics.lowest, metrics.last_finite = min(metrics.lowest, loss), loss


def _figure(record: dict[str, Any], name: str) -> float | None:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # An integer of hundreds of digits: no figure of a training.
        return None


def word(value: float) -> str:
    """Return a non-finite value as text."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
