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
    found = estimate(values)
    assert found.median == median(values) and found.count == len(values)
    assert (found.low is None) == (found.high is None) == (len(values) < FEWEST)
    if found.low is not None and found.high is not None:
        assert found.low <= found.median * (1 + 1e-9) and found.median <= found.high * (1 + 1e-9)
        assert found.holds(found.median) or math.isclose(found.low, found.median)


@given(st.lists(POSITIVE, min_size=FEWEST, max_size=12), st.floats(1e-3, 1e3))
def test_another_unit_changes_nothing_but_the_unit(values: list[float], factor: float) -> None:
    ours, scaled = estimate(values), estimate([value * factor for value in values])
    for one, other in ((ours.low, scaled.low), (ours.median, scaled.median), (ours.high, scaled.high)):
        assert one is not None and other is not None
        assert other == pytest.approx(one * factor, rel=1e-9)


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
    held = 0
    for seed in range(1500):
        draw = random.Random(seed * 1000 + count)
        held += estimate([math.exp(draw.gauss(0.0, 0.1)) for _ in range(count)]).holds(1.0)
    assert held / 1500 >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 1500)


def test_an_interval_of_many_assumes_no_distribution() -> None:
    """Heavy tails and both signs; the bounds are values that were measured."""
    values = [-1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1e12]
    found = estimate(values)
    assert (found.median, found.low, found.high, found.count) == (4.0, 1.0, 7.0, 9)


def test_too_few_values_have_no_interval() -> None:
    for values in ([2.0], [1.0, 3.0], [0.0, 1.0, 2.0]):
        found = estimate(values)
        assert found.low is None and found.high is None
        assert found.holds(1e9), "nothing is excluded"


@given(st.floats(0.5, 2.0), st.integers(0, 1000))
def test_drift_over_both_cancels(gain: float, seed: int) -> None:
    """The machine becomes three times slower on the way: only the pairs tell the gain."""
    draw = random.Random(seed)
    drift = [1.0, 1.5, 2.0, 2.5, 3.0]
    before = [100.0 / one for one in drift]
    after = [gain * value * math.exp(draw.gauss(0, 1e-4)) for value in before]
    found = estimate([slow / fast for slow, fast in zip(after, before)])
    assert found.median == pytest.approx(gain, rel=1e-3)
    assert found.low is not None and found.high is not None and found.high / found.low < 1.01
    apart = estimate(after)
    assert apart.low is not None and apart.high is not None and apart.high / apart.low > 2


def test_equal_values_have_an_interval_without_width() -> None:
    found = estimate([5.0] * 4)
    assert found.low == pytest.approx(5.0) and found.high == pytest.approx(5.0)
    assert not found.holds(5.1)
