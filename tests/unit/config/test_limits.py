"""The range of a number: what lies in it is taken, what lies outside is one line that names the key and the range."""

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from dtk.config.limits import check_numbers, limits
from dtk.errors import DtkError

KEYS = st.sampled_from(sorted(limits()))
NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False))


def section(key: str, value: Any) -> dict[str, Any]:
    """A configuration that holds this key alone."""
    name, _, field = key.rpartition(".")
    return {name: {field: value}} if name else {field: value}


@given(KEYS, NUMBERS)
def test_a_number_is_refused_exactly_outside_its_range(key: str, number: float) -> None:
    low, high = limits()[key]
    if low <= number <= high:
        check_numbers(section(key, number))
        return
    with pytest.raises(DtkError) as caught:
        check_numbers(section(key, number))
    line = str(caught.value)
    assert line.startswith(f"{key}=") and "out of range: it must be" in line and "\n" not in line


@given(KEYS, st.lists(NUMBERS, min_size=1, max_size=3))
def test_each_member_of_a_list_is_held_against_the_range_of_its_key(key: str, numbers: list[float]) -> None:
    low, high = limits()[key]
    if all(low <= number <= high for number in numbers):
        check_numbers(section(key, numbers))
    else:
        with pytest.raises(DtkError, match="out of range"):
            check_numbers(section(key, numbers))


@given(KEYS)
def test_both_ends_belong_to_the_range_and_their_neighbours_do_not(key: str) -> None:
    low, high = limits()[key]
    check_numbers(section(key, low))
    with pytest.raises(DtkError):
        check_numbers(section(key, math.nextafter(low, -math.inf) if isinstance(low, float) else low - 1))
    if high != math.inf:
        check_numbers(section(key, high))
        with pytest.raises(DtkError):
            check_numbers(section(key, math.nextafter(high, math.inf) if isinstance(high, float) else high + 1))


@given(st.sampled_from([True, False, None, "12", "x"]))
def test_what_is_no_number_is_not_this_rule(value: Any) -> None:
    check_numbers({"train": {"steps": value}, "unknown": {"key": 10**30}})
