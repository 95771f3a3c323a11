"""What the steps of one run say once the warm-up is taken away. Pure arithmetic on its records."""

from statistics import median, quantiles

from dtk.compare.model import RunRecord, Window

WARMUP_STEPS = 2
"""Steps that do not count at the beginning of every attempt: allocators, caches, connections and compilers warm up."""


def measured(run: RunRecord, warmup_steps: int) -> list[Window]:
    """Windows without the warm-up and without the steps that the profiler recorded, if others are left."""
    warm = [one for one in run.windows if one.first >= one.began_step + warmup_steps and one.step_time_s is not None]
    begin, end = profiled(run)
    calm = [one for one in warm if one.last <= begin or one.first >= end]
    return calm or warm


def profiled(run: RunRecord) -> tuple[int, int]:
    """Return the steps finished when the profiler began and when its trace was written; (0, 0) without a profiler."""
    if run.get("record.level") != "full":
        return 0, 0
    start, steps = run.get("record.profile_start", 0), run.get("record.profile_steps", 0)
    total = run.get("train.steps", 0)
    if not all(isinstance(one, int) for one in (start, steps, total)) or steps < 1:
        return 0, 0
    begin = min(start, max(1, total - steps + 1)) - 1
    return begin, begin + steps + 1  # The step after it begins with writing the trace.


def step_time_s(run: RunRecord, warmup_steps: int) -> float:
    """Median of the windows.

    Raises:
        statistics.StatisticsError: there are none.
    """
    return median(_times(run, warmup_steps))


def spread_s(run: RunRecord, warmup_steps: int) -> tuple[float, float] | None:
    """Return the lower and upper quartile of the step times in one run; None with fewer than four windows."""
    times = _times(run, warmup_steps)
    if len(times) < 4:
        return None
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high


def tokens_per_step(run: RunRecord) -> float | None:
    """Of the global batch, as trained."""
    last = run.windows[-1]
    return None if last.tokens is None else last.tokens / max(last.last, 1)


def timespan_s(run: RunRecord, warmup_steps: int) -> tuple[float, float]:
    """Wall clock from the first measured step to the last, seconds since 1970."""
    windows = measured(run, warmup_steps)
    first = windows[0]
    return first.time_s - (first.step_time_s or 0.0) * (first.last - first.first), windows[-1].time_s


def _times(run: RunRecord, warmup_steps: int) -> list[float]:
    return [one.step_time_s for one in measured(run, warmup_steps) if one.step_time_s is not None]
