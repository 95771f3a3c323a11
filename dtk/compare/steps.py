"""Statistics of one run's steps after the warm-up. Pure arithmetic on its records."""

from statistics import median, quantiles

from dtk.compare.model import RunRecord, Window

_QUARTERS = 4  # Quartiles of fewer windows would be those windows themselves.


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
