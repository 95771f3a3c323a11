"""Figures of untrusted records: what is plausible stays, all else is None."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.model import MOST_BYTES, integer, seconds, size_of

ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@given(ANYTHING)
@settings(max_examples=100)
def test_whatever_comes_out_is_within_the_bounds(value):
    assert integer(value) is None or -(1 << 62) <= integer(value) < 1 << 62
    assert size_of(value) is None or 0 <= size_of(value) < MOST_BYTES
    assert seconds(value) is None or 0 <= seconds(value) < 1e11


@given(st.integers(-(1 << 62), (1 << 62) - 1))
@settings(max_examples=60)
def test_a_number_may_be_written_as_a_text(value):
    assert integer(value) == integer(str(value)) == value


@pytest.mark.parametrize("value", [True, 1.0, "1.0", " 1", "0x10", "١٢", "9" * 20, 1 << 62, -1, None, [1]])
def test_what_is_no_integer_of_the_range(value):
    assert integer(value, 0) is None


def test_the_end_does_not_belong_to_the_range():
    assert [integer(value, 1, 3) for value in (0, 1, 2, 3)] == [None, 1, 2, None]
    assert size_of(MOST_BYTES) is None
    assert size_of(MOST_BYTES - 1) == MOST_BYTES - 1


@pytest.mark.parametrize(
    ("value", "time_s"),
    [("1700000000", 1.7e9), (1.5, 1.5), (0, 0.0), ("nan", None), (float("inf"), None), ("soon", None), (-1, None),
     (10**400, None), (1e11, None)],
)  # fmt: skip
def test_seconds_since_1970(value, time_s):
    assert seconds(value) == time_s
