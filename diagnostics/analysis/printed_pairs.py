"""Differences between two series of printed steps: of two runs, or of a run and its resume. Names no cause."""

from bisect import bisect
from collections.abc import Iterator
from itertools import combinations
from math import isfinite
from statistics import median, quantiles

from msgspec import Struct

from diagnostics.analysis.printed_steps import LEAST_AFTER, OUTLIERS, RATIO, WINDOW, Printed, PrintedSteps

_CLOSE = 0.03  # Relative difference due to rounding, the order of sums and the number of ranks.
_EXACT = 1e-3  # Relative difference of figures of one step that are printed with four digits.
_FALLS = 0.8  # Ratio of last to first losses of a run that learns.
_MOST = 40  # Maximum number of courses to compare: hundreds of ranks may print the steps of one run.
_BEGINS = 1.5  # Maximum first step, in distances between printed steps, of a run that begins at 0.
_ENDS, _LAST = 3, 10
"""Number of first steps whose median loss a run begins with; it ends with that of one part in `_LAST` of its steps."""
_PART, _GAP = LEAST_AFTER // 2, 2  # Minimum number of steps of a part, and maximum of those missing at a resume.
_COURSE = 50  # Minimum number of steps of each run to compare how their losses develop.


class Course(Struct, frozen=True):
    """Steps in ascending order: of a whole log, or of a part of it up to a resume, or where the numbers go back."""

    file: str
    rows: tuple[tuple[float, float, float, int], ...]
    """(step, loss, gradient norm, line in the file)"""


def courses(log: Printed) -> list[Course]:
    """Split the steps of a log at resumes and where their numbers go back; parts with too few steps are dropped."""
    parts: list[list[tuple[float, float, float, int]]] = [[]]
    series, resumes, begun = log.series, log.steps.resumes, 0
    for row in zip(series.step, series.loss, series.norm, series.lines, strict=True):
        before, begun = begun, bisect(resumes, row[3])
        # A number that is not greater: also NaN, if the trainer prints none.
        if parts[-1] and (begun > before or not row[0] > parts[-1][-1][0]):
            parts.append([])
        if isfinite(row[0]) and isfinite(row[1]):
            parts[-1].append(row)
    return [Course(log.file, tuple(part)) for part in parts if len(part) >= _PART]


def multiples(job: PrintedSteps) -> Iterator[tuple[str, int, Course, Course]]:
    """Yield (figure, factor, run, other run) where `loss` or `grad_norm` of the other run is `factor` times as large.

    The factor is an integer above 1. Losses of the same samples have the same ratio at all steps; others do not.
    """
    for run, other in _pairs(job):
        rows = {row[0]: row for row in run.rows}
        both = [(rows[row[0]], row) for row in other.rows if row[0] in rows]
        factors = [_factor([(a[column], b[column]) for a, b in both]) for column in (1, 2)]
        if not factors[0] and all(course.rows[0][0] <= _BEGINS * _stride(course) for course in (run, other)):
            # The runs part after the first update, but the same weights have the same loss and the same gradient.
            factors = [_factor([(a[column], b[column]) for a, b in both[:1]], 1, _EXACT) for column in (1, 2)]
            factors = factors if factors[1] and factors[0] in (-1, 1, factors[1]) else [0, 0]
        for figure, factor in zip(("loss", "grad_norm"), factors, strict=True):
            if abs(factor) > 1 and (figure == "loss" or abs(factors[0]) == 1):
                yield (figure, factor, run, other) if factor > 1 else (figure, -factor, other, run)


def frozen_beside(job: PrintedSteps) -> Course | None:
    """Return a run whose loss stays at its initial value while that of another run falls from the same value."""
    for pair in _pairs(job):
        for run, other in (pair, pair[::-1]):
            if min(len(run.rows), len(other.rows)) >= _COURSE:
                (first, last), (begin, end) = _ends(run), _ends(other)
                is_same = abs(begin - first) < _CLOSE * abs(first) and 0 < last < _FALLS * first
                if is_same and abs(end - begin) < _CLOSE * begin:
                    return other
    return None


def worse_after_resume(job: PrintedSteps) -> tuple[Course, Course, float, float] | None:
    """Return a run, its resume, and the median losses before and after it, if the loss after it is far higher."""
    every = [(log, course) for log in job.logs for course in courses(log)][:_MOST]
    for later, resumed in every:
        start = resumed.rows[0][0]
        for log, run in every:
            first, last = run.rows[0][0], run.rows[-1][0]
            goes_on = first < start <= last + _GAP * _stride(run) and start > _BEGINS * _stride(resumed)
            if run is resumed or not goes_on or not log.is_comparable(later):
                continue
            before = [loss for step, loss, _, _ in run.rows if step < start][-WINDOW:]
            # With the weights alone, the first steps go on at the loss before.
            parts = (resumed.rows[:_PART], resumed.rows[_PART : _PART + WINDOW])
            for after in (
                sorted(row[1] for row in rows) for rows in parts if min(len(rows), len(before) // 2) >= _PART
            ):
                low, high = median(before), median(after)
                if 0 < RATIO * low < high and after[len(after) // OUTLIERS] > max(before):
                    return run, resumed, low, high
    return None


def _stride(course: Course) -> float:
    return (course.rows[-1][0] - course.rows[0][0]) / (len(course.rows) - 1)


def _pairs(job: PrintedSteps) -> Iterator[tuple[Course, Course]]:
    every = [(log, parts[0]) for log in job.logs if (parts := courses(log))][:_MOST]
    return ((run, other) for (log, run), (later, other) in combinations(every, 2) if log.is_comparable(later))


def _factor(values: list[tuple[float, float]], least: int = WINDOW, tolerance: float = _CLOSE) -> int:
    """Return the integer that all ratios b / a are close to, -n if they are close to 1 / n; 0 = none."""
    ratios = sorted(b / a for a, b in values if a > 0 and b > 0 and isfinite(a + b))
    if len(ratios) < least:
        return 0
    low, *_, high = quantiles(ratios, n=OUTLIERS) if len(ratios) > 1 else ratios * 2
    middle = median(ratios)
    factor = round(middle) if middle >= 1 else -round(1 / middle)
    exact = factor if factor > 0 else -1 / factor
    return factor if all(abs(ratio - exact) < tolerance * exact for ratio in (low, middle, high)) else 0


def _ends(course: Course) -> tuple[float, float]:
    width = max(_ENDS, len(course.rows) // _LAST)
    return median(row[1] for row in course.rows[:_ENDS]), median(row[1] for row in course.rows[-width:])
