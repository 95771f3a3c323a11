"""Medians and ratios with intervals, for figures that were measured a few times, and their texts. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev

from msgspec import Struct

from diagnostics.contract.formatting import bytes_text, seconds_text

LEVEL = 0.95  # Confidence level of every interval.
FEWEST = 3  # Minimum number of values for an interval; that of two would span orders of magnitude.
FREE_OF_ASSUMPTIONS = 6
"""Number of values from which order statistics alone cover the median with `LEVEL`: 1 - 2 / 2**6 = 96.9%."""
_STUDENT = {2: 4.303, 3: 3.182, 4: 2.776}
"""97.5% points of Student's t by degrees of freedom (any table of the t distribution)."""
_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, sqrt(pi / 2), for a normal distribution and many values."""
METHOD = (
    "median with 95% interval: from order statistics for 6 or more values (no assumption on the distribution), from "
    "Student's t on logarithms, widened by sqrt(pi / 2), for 3 to 5; none for fewer"
)


class Estimate(Struct, frozen=True):
    """A median with its interval; `low` and `high` are None if there are too few values."""

    median: float
    low: float | None
    high: float | None
    count: int
    """Number of values."""

    def holds(self, value: float) -> bool:
        """Return whether the interval contains `value`; always True without an interval."""
        return self.low is None or self.high is None or self.low <= value <= self.high

    def span(self, text: Callable[[float], str], between: str = " - ") -> str:
        """Format as `0.98 - 1.02`; empty without an interval."""
        return "" if self.low is None or self.high is None else f"{text(self.low)}{between}{text(self.high)}"

    def falling(self, of: Callable[[float], float]) -> "Estimate":
        """Return the estimate of a decreasing function of the value, which swaps the bounds."""
        low, high = (None if bound is None else of(bound) for bound in (self.high, self.low))
        return Estimate(of(self.median), low, high, self.count)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median and its interval (of fewer than six values, all must be above 0); ValueError without values."""
    if not values:
        raise ValueError("no value to estimate from")
    middle, count = median(values), len(values)
    if count >= FREE_OF_ASSUMPTIONS:
        # Values at each end that the interval can do without: a sign test read backwards. P(fewer than `out` of count
        # fair coins) must stay within what the level leaves on one side.
        ordered, out, below = sorted(values), 0, 0.5**count
        while below <= (1 - LEVEL) / 2:
            out += 1
            below += math.comb(count, out) * 0.5**count
        return Estimate(middle, ordered[out - 1], ordered[-out], count)
    if count < FEWEST or min(values) <= 0:
        return Estimate(middle, None, None, count)
    logs = [math.log(value) for value in values]
    half = _STUDENT[count - 1] * _MEDIAN * stdev(logs) / math.sqrt(count)
    centre = math.log(middle)
    # Few values that hardly differ would else exclude their own mean.
    half = max(half, abs(centre - fmean(logs)))
    return Estimate(middle, _exp(centre - half), _exp(centre + half), count)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def value_text(value: float, unit: str) -> str:
    """Return one figure with its unit: `3,413 tokens/s`, `301 ms`, `369 MiB`, `41.2%`, `12.3 J`."""
    if unit == "bytes":
        return bytes_text(value)
    if unit == "s":
        return seconds_text(value)
    return f"{value:.1%}" if unit == "fraction" else f"{number_text(value)} {unit}"


def number_text(value: float) -> str:
    """Return `412,345`, `41.2`, `0.00123`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval_text(estimate: Estimate, unit: str) -> str:
    """Return `3,300 to 3,500 tokens/s`; nothing without an interval."""
    return "" if estimate.low is None or estimate.high is None else range_text(estimate.low, estimate.high, unit)


def range_text(low: float, high: float, unit: str) -> str:
    """Return `3,300 to 3,500 tokens/s`, `1.2 to 1.4 s`."""
    first, last = value_text(low, unit), value_text(high, unit)
    *_, end = last.rpartition(" ")
    return f"{first.removesuffix(f' {end}') if first.endswith(f' {end}') else first} to {last}"


def ratio_text(ratio: Estimate | None) -> str:
    """Return `0.76x (0.74 to 0.79)`."""
    return "" if ratio is None else f"{times_text(ratio.median)}{bounds_text(ratio)}"


def bounds_text(ratio: Estimate) -> str:
    """Return ` (0.74 to 0.79)`; nothing without an interval."""
    span = ratio.span(_short, " to ")
    return f" ({span})" if span else ""


def times_text(value: float) -> str:
    """Return `1.31x`"""
    return f"{_short(value)}x"


def _short(value: float) -> str:
    if not math.isfinite(value) or value > 1e6:
        return "over 1,000,000"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
