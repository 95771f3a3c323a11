"""How fast a job printed its steps: from where on they were slower."""

from bisect import bisect
from collections.abc import Sequence
from math import isfinite, nan
from statistics import median, mode

from msgspec import Struct

from diagnostics.analysis.printed_steps import LEAST_AFTER, WINDOW, PrintedSteps, ascent, last_run, rise, step_text
from diagnostics.evidence.logs.steps import Series

_TICKS = 20  # A time is divided among steps only where it is so many times the resolution of its clock.
_SKEW = 3  # Maximum number of printed steps by which ranks that share a log are apart.
_BY_TURNS = 0.1  # Share of steps behind earlier ones from which several jobs print into one log by turns.
_HALF = 2  # Steps on either side of one whose median duration counts: a pause is over after fewer.


class Slower(Struct, frozen=True):
    """Steps that became slower, and stayed so to the end of a log."""

    file: str
    line: int
    where: str
    """The first one: its number, the epoch, or the line."""
    before_s: float
    after_s: float
    """Median duration of a step before and after it; from one printed line to the next where no steps are counted."""


def slower(printed: PrintedSteps) -> Slower | None:
    """Return from where on the steps of a log were slower to its end, or None."""
    for log in printed.logs:
        for series in (log.series, log.steps.bars):
            rows, every_s = _durations(series, log.steps.resumes)
            spent_s = [median(every_s[max(0, n - _HALF) : n + _HALF + 1]) for n in range(len(every_s))]
            if (change := rise(spent_s) or ascent(spent_s)) is not None:
                return Slower(log.file, *_place(series, rows[change[0]]), *change[1:])
    return None


def _place(series: Series, row: int) -> tuple[int, str]:
    return series.lines[row], step_text(series.step[row]) or f"line {series.lines[row]:,}"


def _durations(series: Series, resumes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return rows of the last run of a log, and the time (s) of a step from the row before to each of them."""
    timed = next((own for own in (series.took_s, series.at_s) if sum(map(isfinite, own)) >= WINDOW + LEAST_AFTER), None)
    if timed is None:
        return [], []
    total, begin = mode(series.total or [nan]), [0, *resumes][bisect(resumes, series.lines[-1])]
    # Other progress bars are of an evaluation.
    own = [nan if total == total != series.total[n] or series.lines[n] < begin else at for n, at in enumerate(timed)]
    rows, behind = list[int](), 0
    for n in (run := last_run(series, own)):
        if not rows or not series.step[n] <= series.step[rows[-1]]:
            rows.append(n)  # Ranks print a step again.
        behind += series.step[n] < series.step[rows[-_SKEW:][0]]
    if behind > _BY_TURNS * len(run):
        return [], []
    if timed is series.took_s:
        return rows, [timed[n] for n in rows]
    least_s = _TICKS * (1.0 if all(timed[n] % 1 == 0 for n in rows) else 0.001)
    ends, spent_s, start = list[int](), list[float](), rows[:1]
    for n in rows:
        passed_s, steps = timed[n] - timed[start[-1]], series.step[n] - series.step[start[-1]]
        if passed_s >= least_s:
            ends.append(n)
            spent_s.append(passed_s / (steps if steps == steps else n - start[-1]))
            start.append(n)
    return ends, spent_s
