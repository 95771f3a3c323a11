"""Intervals: they hold their median, follow a change of unit, hold the truth as often as they say, and cancel drift."""

import math
import random
from statistics import median

import pytest
from hypothesis import given, strategies as st

from dtk.compare import statistics
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


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3413.2, "tokens/s", "3,413 tokens/s"),
        (0.301, "s", "301 ms"),
        (369 << 20, "bytes", "369 MiB"),
        (0.412, "fraction", "41.2%"),
        (12.34, "J", "12.3 J"),
        (0.00123, "J", "0.00123 J"),
    ],
)
def test_a_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert statistics.value_text(value, unit) == text


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (3300.0, 3500.0, "tokens/s", "3,300 to 3,500 tokens/s"),
        (1.2, 1.4, "s", "1.2 to 1.4 s"),
        (0.9, 1.4, "s", "900 ms to 1.4 s"),
        (0.4, 0.5, "fraction", "40.0% to 50.0%"),
    ],
)
def test_a_range_names_its_unit_once_unless_it_changes(low: float, high: float, unit: str, text: str) -> None:
    assert statistics.range_text(low, high, unit) == text


def test_an_interval_that_is_not_known_is_not_written() -> None:
    alone, sure = Estimate(2.0, None, None, 1), Estimate(2.0, 1.5, 2.5, 6)
    assert statistics.interval_text(alone, "s") == "" and statistics.bounds_text(alone) == ""
    assert statistics.interval_text(sure, "s") == "1.5 to 2.5 s"
    assert statistics.ratio_text(None) == "" and statistics.ratio_text(alone) == "2.00x"
    assert statistics.ratio_text(sure) == "2.00x (1.50 to 2.50)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.314, "1.31x"), (13.14, "13.1x"), (1314.0, "1,314x"), (1e9, "over 1,000,000x"), (math.inf, "over 1,000,000x")],
)
def test_a_factor_is_as_short_as_it_can_be(value: float, text: str) -> None:
    assert statistics.times_text(value) == text


@given(st.floats(1e-9, 1e12), st.sampled_from(["bytes", "s", "fraction", "tokens/s", "J"]))
def test_what_is_written_has_a_number_and_is_short(value: float, unit: str) -> None:
    text = statistics.value_text(value, unit)
    assert any(character.isdigit() for character in text) and len(text) < 40
    assert (
        text.endswith({"bytes": "B", "s": ("s", "min", "h", "d"), "fraction": "%"}.get(unit, unit)) or unit == "bytes"
    )
