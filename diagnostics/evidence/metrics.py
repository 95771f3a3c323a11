"""Metrics of a dtk run over its steps (metrics.jsonl): losses, gradient norms, figures of the layout."""

import math
from collections import deque
from statistics import median
from typing import Any

from msgspec import Struct, field

from diagnostics.evidence.model import MOST_RANKS

FIGURES = ("loss", "grad_norm", "validation_loss")
_PIPELINE = ("pipeline_bubble", "pipeline_bubble_ideal", "pipeline_busiest", "pipeline_imbalance")
LAYOUT = ("step_time_s", *_PIPELINE, "expert_rank_load")
"""Figures whose last `KEPT` values are kept, to evaluate a layout."""
WARMUP_STEPS = 2
"""Chosen: steps at the start of an attempt, logged windows of a loop, that no median counts: allocators, caches,
connections and compilers warm up."""
KEPT = 200
RANK_LOADS = "expert_load_per_rank"
_KEPT_LOADS = 16  # Records whose loads of all ranks are kept.


class BadFigure(Struct, frozen=True):
    """A figure that is NaN or infinite."""

    figure: str
    value: str
    """`nan`, `inf` or `-inf`."""
    step: int
    line: int
    """Line in metrics.jsonl, from 1."""
    step_before: int | None
    """Last recorded step with a finite value."""


class Metrics(Struct):
    """Summary of the records."""

    records: int = 0
    """Number of records with a training loss."""
    last_step: int | None = None
    bad: dict[str, BadFigure] = field(default_factory=dict)
    """Figure -> its first bad value."""
    lowest: float = math.inf
    """Smallest finite loss before the first bad one, in nats."""
    last_finite: float | None = None
    """Latest finite loss before the first non-finite one."""
    recovered: bool = False
    """Whether a finite loss followed a bad one."""
    recent: dict[str, deque[float]] = field(default_factory=dict)
    """Name in `LAYOUT` -> its last finite values, the oldest first."""
    rank_loads: deque[list[float]] = field(default_factory=lambda: deque(maxlen=_KEPT_LOADS))
    """`RANK_LOADS` of the last records, in order of rank."""
    finite_at: dict[str, int] = field(default_factory=dict)
    """Figure -> last step with a finite value."""

    def typical(self, name: str) -> float | None:
        """Return the median of the later half of a figure in `LAYOUT`; None if it was not recorded."""
        values = list(self.recent.get(name, ()))
        return median(values[len(values) // 2 :]) if values else None

    def typical_loads(self) -> list[float]:
        """Return the median of each rank's `RANK_LOADS`; empty if they were not recorded."""
        ranks = len(self.rank_loads[-1]) if self.rank_loads else 0
        return [median(loads[rank] for loads in self.rank_loads if len(loads) == ranks) for rank in range(ranks)]

    def take(self, record: dict[str, Any], number: int) -> None:
        """Add the record of line `number`; records without a step are ignored."""
        step, loss = record.get("step"), _figure(record.get("loss"))
        if not isinstance(step, int):
            return
        if loss is not None and self.last_step is not None and step <= self.last_step:
            # Restarted from a checkpoint: these steps replace the ones before.
            self.bad, self.finite_at, self.recovered, self.lowest, self.last_finite = {}, {}, False, math.inf, None
        for figure in FIGURES:
            if (value := _figure(record.get(figure))) is None:
                continue
            if math.isfinite(value):
                self.finite_at[figure] = step
            elif figure not in self.bad:
                self.bad[figure] = BadFigure(figure, word(value), step, number, self.finite_at.get(figure))
        for name in LAYOUT:
            if (value := _figure(record.get(name))) is not None and math.isfinite(value):
                self.recent.setdefault(name, deque(maxlen=KEPT)).append(value)
        if isinstance(loads := record.get(RANK_LOADS), list) and len(loads) <= MOST_RANKS:
            values = [value for load in loads if (value := _figure(load)) is not None and math.isfinite(value)]
            if len(values) == len(loads):
                self.rank_loads.append(values)
        if loss is not None:
            self.records += 1
            self.last_step = step
            if math.isfinite(loss) and "loss" in self.bad:
                self.recovered = True
            elif math.isfinite(loss):
                self.lowest, self.last_finite = min(self.lowest, loss), loss


def _figure(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # An integer of hundreds of digits: no figure of a training.
        return None


def word(value: float) -> str:
    """Return a non-finite value as text."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
