"""Intervals: they hold their median, follow a change of unit, and hold the truth as often as they say."""

import math
import random
from statistics import median

import pytest
from hypothesis import given, strategies as st

from dtk.compare.figures import ratio_of
from dtk.compare.statistics import FEWEST, FREE_OF_ASSUMPTIONS, LEVEL, Estimate, estimate

POSITIVE = st.floats(1e-6, 1e6)
FEW = st.lists(POSITIVE, min_size=1, max_size=12)


@given(FEW)
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


@pytest.mark.parametrize("count", [3, 5, FREE_OF_ASSUMPTIONS, 9])
def test_it_holds_the_truth_about_as_often_as_it_says(count: int) -> None:
    """2,000 draws from a log-normal distribution around 1; three standard errors of that share are 1.5%."""
    draw = random.Random(count)
    held = sum(estimate([draw.lognormvariate(0, 0.1) for _ in range(count)]).holds(1.0) for _ in range(2000))
    assert held / 2000 > LEVEL - 0.02


def test_no_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="no value"):
        estimate([])
