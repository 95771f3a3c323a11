"""How figures are written: units, ranges, ratios; figures without end or of nothing stay readable."""

import math

import pytest
from hypothesis import given, strategies as st

from dtk.compare import formatting
from dtk.compare.statistics import Estimate


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
    assert formatting.value_text(value, unit) == text


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
    assert formatting.range_text(low, high, unit) == text


def test_an_interval_that_is_not_known_is_not_written() -> None:
    alone, sure = Estimate(2.0, None, None, 1), Estimate(2.0, 1.5, 2.5, 6)
    assert formatting.interval_text(alone, "s") == "" and formatting.bounds_text(alone) == ""
    assert formatting.interval_text(sure, "s") == "1.5 to 2.5 s"
    assert formatting.ratio_text(None) == "" and formatting.ratio_text(alone) == "2.00x"
    assert formatting.ratio_text(sure) == "2.00x (1.50 to 2.50)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.314, "1.31x"), (13.14, "13.1x"), (1314.0, "1,314x"), (1e9, "over 1,000,000x"), (math.inf, "over 1,000,000x")],
)
def test_a_factor_is_as_short_as_it_can_be(value: float, text: str) -> None:
    assert formatting.times_text(value) == text


@given(st.floats(1e-9, 1e12), st.sampled_from(["bytes", "s", "fraction", "tokens/s", "J"]))
def test_what_is_written_has_a_number_and_is_short(value: float, unit: str) -> None:
    text = formatting.value_text(value, unit)
    assert any(character.isdigit() for character in text) and len(text) < 40
    assert (
        text.endswith({"bytes": "B", "s": ("s", "min", "h", "d"), "fraction": "%"}.get(unit, unit)) or unit == "bytes"
    )
