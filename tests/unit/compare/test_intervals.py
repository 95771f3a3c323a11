"""Medians and ratios with intervals: they hold what they promise, and cancel what drifts."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from dtk.compare.statistics import estimate


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
    with pytest.raises(ValueError, match="no value"):
        estimate([])


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    found = estimate(values)
    assert min(values) <= found.median <= max(values)
    if found.low is not None and found.high is not None:
        assert found.low <= found.median * (1 + 1e-12) and found.median <= found.high * (1 + 1e-12)


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
