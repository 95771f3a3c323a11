"""How rates, shares and counts of a plan are written."""

import pytest
from hypothesis import given, strategies as st

from dtk.plan.formatting import count_text, flops_text, percent_text, rate_text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (rate_text, 412_345.0, "412,000"),
        (rate_text, 99.94, "99.9"),
        (rate_text, 0.01234, "0.0123"),
        (percent_text, 0.4312, "43.1%"),
        (percent_text, 197.921, "19,792%"),
        (flops_text, 989.4e12, "989 TFLOP/s"),
        (flops_text, 1979e12, "1,979 TFLOP/s"),
        (flops_text, 0.5e12, "0.5 TFLOP/s"),
        (count_text, 1_557_611_200, "1.56 B"),
        (count_text, 124_439_808, "124 M"),
        (count_text, 12_345, "12.3 k"),
        (count_text, 1.8e12, "1.80 T"),
        (count_text, 12, "12"),
    ],
)
def test_figures(write, value, text) -> None:
    assert write(value) == text


@given(st.floats(1e3, 1e15))
def test_a_count_is_within_half_a_percent_of_what_is_written(count: float) -> None:
    number, unit = count_text(count).split()
    assert float(number) * {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[unit] == pytest.approx(count, rel=0.006)
