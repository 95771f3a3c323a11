"""Intervals: they hold their median, follow a change of unit, hold the truth as often as they say, and cancel drift."""

import math
import random
from statistics import median

import pytest
from hypothesis import given, strategies as st

from dtk.compare.figures import ratio_of
from dtk.compare.statistics import FEWEST, Estimate, estimate

POSITIVE = st.floats(1e-6, 1e6)
SAMPLES = st.lists(POSITIVE, min_size=1, max_size=30)


@given(SAMPLES)
def test_the_interval_holds_the_median_and_exists_from_three_values_on(values: list[float]) -> None:
    interval = estimate(values)
    assert interval.median == median(values) and interval.count == len(values)
    assert (interval.low is None) == (interval.high is None) == (len(values) < FEWEST)
    if interval.low is not None and interval.high is not None:
        assert interval.low <= interval.median * (1 + 1e-9) and interval.median <= interval.high * (1 + 1e-9)
        assert interval.holds(interval.median) or math.isclose(interval.low, interval.median)


@given(st.lists(POSITIVE, min_size=FEWEST, max_size=12), st.floats(1e-3, 1e3))
def test_another_unit_changes_nothing_but_the_unit(values: list[float], factor: float) -> None:
    ours, scaled = estimate(values), estimate([value * factor for value in values])
    for first, other in ((ours.low, scaled.low), (ours.median, scaled.median), (ours.high, scaled.high)):
        assert first is not None and other is not None
        assert other == pytest.approx(first * factor, rel=1e-9)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=10), st.floats(0.5, 2.0))
def test_a_drift_that_hits_both_alike_cancels(pairs: list[tuple[float, float]], drift: float) -> None:
    after, before = [a for a, _ in pairs], [b for _, b in pairs]
    drifted = [drift**n for n in range(len(pairs))]

    def ratio(after: list[float], before: list[float]) -> Estimate | None:
        return ratio_of(lambda value: value, after, before)  # type: ignore[arg-type, return-value]

    moved = ratio([a * d for a, d in zip(after, drifted)], [b * d for b, d in zip(before, drifted)])
    still = ratio(after, before)
    assert moved is not None and still is not None
    assert moved.median == pytest.approx(still.median, rel=1e-9)
    assert (moved.low is None) == (still.low is None)


def test_no_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="no value"):
        estimate([])


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 9, 15])
def test_an_interval_of_95_percent_holds_the_truth_as_often(count: int) -> None:
    """Over 1,500 samples the share that holds it is 95% or more, less twice its own standard error."""
    kept = 0
    for seed in range(1500):
        draw = random.Random(seed * 1000 + count)
        kept += estimate([math.exp(draw.gauss(0.0, 0.1)) for _ in range(count)]).holds(1.0)
    assert kept / 1500 >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 1500)


def test_an_interval_of_many_assumes_no_distribution() -> None:
    """Heavy tails and both signs; the bounds are values that were measured."""
    values = [-1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1e12]
    interval = estimate(values)
    assert (interval.median, interval.low, interval.high, interval.count) == (4.0, 1.0, 7.0, 9)


def test_too_few_values_have_no_interval() -> None:
    for values in ([2.0], [1.0, 3.0], [0.0, 1.0, 2.0]):
        interval = estimate(values)
        assert interval.low is None and interval.high is None
        assert interval.holds(1e9), "nothing is excluded"


@given(st.floats(0.5, 2.0), st.integers(0, 1000))
def test_drift_over_both_cancels(gain: float, seed: int) -> None:
    """The machine becomes three times slower on the way: only the pairs tell the gain."""
    draw = random.Random(seed)
    drift = [1.0, 1.5, 2.0, 2.5, 3.0]
    before = [100.0 / item for item in drift]
    after = [gain * value * math.exp(draw.gauss(0, 1e-4)) for value in before]
    interval = estimate([slow / fast for slow, fast in zip(after, before)])
    assert interval.median == pytest.approx(gain, rel=1e-3)
    assert interval.low is not None and interval.high is not None and interval.high / interval.low < 1.01
    apart = estimate(after)
    assert apart.low is not None and apart.high is not None and apart.high / apart.low > 2


def test_equal_values_have_an_interval_without_width() -> None:
    interval = estimate([5.0] * 4)
    assert interval.low == pytest.approx(5.0) and interval.high == pytest.approx(5.0)
    assert not interval.holds(5.1)
