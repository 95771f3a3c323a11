"""Figures of one run (of its steps after the warm-up), and of each variant: median over repeats, interval, ratio."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median, quantiles

from diagnostics.contract.files import table_beside
from dtk.compare.model import Cell, Figure, RunRecord, Variant, Window
from dtk.compare.statistics import Estimate, estimate

_QUARTERS = 4  # Quartiles of fewer windows would be those windows themselves.
Read = Callable[[RunRecord], float | None]


def measured(run: RunRecord) -> list[Window]:
    """Return windows without the warm-up and without the steps that the profiler recorded, if others are left."""
    warm = [w for w in run.windows if w.first >= w.began_step + run.warmup_steps and w.step_time_s is not None]
    begin, end = profiled(run)
    return [window for window in warm if window.last <= begin or window.first >= end] or warm


def profiled(run: RunRecord) -> tuple[int, int]:
    """Return the steps finished when the profiler began and when its trace was written; (0, 0) without a profiler."""
    if run.get("record.level") != "full":
        return 0, 0
    keys = ("record.profile_start", "record.profile_steps", "train.steps")
    start, steps, total = (run.get(key, 0) for key in keys)
    if not all(isinstance(value, int) for value in (start, steps, total)) or steps < 1:
        return 0, 0
    begin = min(start, max(1, total - steps + 1)) - 1
    return begin, begin + steps + 1  # The step after it begins with writing the trace.


def step_time_s(run: RunRecord) -> float:
    """Return the median of the windows; statistics.StatisticsError if there are none."""
    return median(times_s(run))


def spread_s(run: RunRecord) -> tuple[float, float] | None:
    """Return the lower and upper quartile of the step times in one run; None with fewer than four windows."""
    values = times_s(run)
    if len(values) < _QUARTERS:
        return None
    low, _, high = quantiles(values, n=_QUARTERS, method="inclusive")
    return low, high


def tokens_per_step(run: RunRecord) -> float | None:
    """Return the tokens of a global batch, as trained."""
    last = run.windows[-1]
    return None if last.tokens is None else last.tokens / max(last.last, 1)


def timespan_s(run: RunRecord) -> tuple[float, float]:
    """Return the wall clock from the first measured step to the last, seconds since 1970."""
    windows = measured(run)
    first = windows[0]
    return first.time_s - (first.step_time_s or 0.0) * (first.last - first.first), windows[-1].time_s


def times_s(run: RunRecord) -> list[float]:
    """Return the step time of each measured window."""
    return [w.step_time_s for w in measured(run) if w.step_time_s is not None]


def figures(variants: Sequence[Variant], *, ratios: bool) -> list[Figure]:
    """Return all quantities that at least one variant has.

    The first variant of each batch is the baseline of its ratios; `ratios=False` if runs are not comparable.
    """
    rows = [
        Figure(key, **texts, cells=tuple(_cells(key, variants, ratios)))
        for key, texts in table_beside(__file__).items()
    ]
    return [row for row in rows if any(cell.estimate is not None for cell in row.cells)]


def batch_text(run: RunRecord) -> str:
    """Return `batch 8 x 128`: samples and tokens of a sample."""
    samples, tokens = run.batch
    return f"batch {samples} x {tokens}"


def baselines(variants: Sequence[Variant]) -> dict[str, Variant]:
    """Return batch -> the first variant of that batch, with which the others are compared."""
    return {batch_text(variant.any): variant for variant in reversed(variants)}


def ratio_of(read: Read, runs: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> Estimate | None:
    """Return a figure over the baseline's; None without a pair.

    Repeats were taken in turns, so the n-th are a pair, in whose ratio what drifts over both alike cancels.
    """
    values = [(read(run), read(base)) for run, base in zip(runs, baseline, strict=False)]
    ratios = [value / base for value, base in values if value is not None and base]
    return estimate(ratios) if ratios else None


def _cells(key: str, variants: Sequence[Variant], ratios: bool) -> Iterator[Cell]:
    references, read = baselines(variants), READ[key]
    for variant in variants:
        batch = batch_text(variant.any)
        recorded = [value for run in variant.compared if (value := read(run)) is not None]
        against = references[batch].compared if ratios and references[batch] is not variant else ()
        over = ratio_of(read, variant.compared, against)
        spread = None
        if len(variant.compared) == 1:  # The middle half of its steps, of the two figures that each step has.
            spread_of_run, tokens = spread_s(variant.any), tokens_per_step(variant.any)
            if spread_of_run is not None and tokens is not None and key == "tokens_per_s":
                spread = tokens / spread_of_run[1], tokens / spread_of_run[0]
            spread = spread_of_run if key == "step_time_s" else spread
        yield Cell(variant.label, batch, estimate(recorded) if recorded else None, over, spread)


def _memory(run: RunRecord) -> float | None:
    ranks = run.figures.get("peak_memory_bytes_per_rank")
    values = [value for value in ranks if isinstance(value, int | float)] if isinstance(ranks, list) else []
    values += [window.memory_bytes for window in run.windows if window.memory_bytes is not None]
    return float(max(values)) if values else None


READ: dict[str, Read] = {
    "tokens_per_s": lambda run: tokens / step_time_s(run) if (tokens := tokens_per_step(run)) is not None else None,
    "step_time_s": step_time_s,
    "peak_memory_bytes": _memory,
    "exposed_s": lambda run: run.breakdown.exposed_ms / 1e3 if run.breakdown else None,
    "communicated_bytes": lambda run: run.windows[-1].sent_bytes,
    "energy_j": lambda run: run.energy_j,
    "mfu": lambda run: (
        median(values) if (values := [each.mfu for each in measured(run) if each.mfu is not None]) else None
    ),
}
"""Key of a figure -> how it is read from a run."""
