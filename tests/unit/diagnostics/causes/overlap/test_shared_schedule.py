"""Ceilings: how good a schedule could be, from times that were measured."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.causes.overlap._shared import (
    MIB,
    exposed_in_buckets,
    exposed_in_units,
    good_buckets,
    good_cap_mb,
)

TIMES = st.floats(0, 1e6)


@pytest.mark.parametrize(("total", "buckets"), [(1, 4), (100 * MIB, 4), (101 * MIB, 5), (1000 * MIB, 40)])
def test_gradients_are_best_cut_into_buckets_of_25_mib_and_at_least_four(total: int, buckets: int) -> None:
    assert good_buckets(total) == buckets


@settings(max_examples=50)
@given(st.integers(1, 10_000 * MIB))
def test_the_cap_gives_that_number_of_buckets(total: int) -> None:
    cap = good_cap_mb(total)
    assert 0.05 <= cap <= 25
    assert total / (cap * MIB) <= good_buckets(total) * 1.5 or cap == 0.05


def test_what_cannot_be_hidden_in_buckets() -> None:
    assert exposed_in_buckets(100, 0, 4, 1000) == pytest.approx(25), "the last one is ready when compute ends"
    assert exposed_in_buckets(4000, 0, 4, 1000) == pytest.approx(3250), "the first can begin after a quarter"
    assert exposed_in_buckets(100, 10, 4, 1000) == pytest.approx(35)


def test_what_cannot_be_hidden_in_units() -> None:
    assert exposed_in_units(800, 0, 8, 1000) == pytest.approx(100), "the first gather is always exposed"
    assert exposed_in_units(1600, 0, 8, 800) == pytest.approx(200 + 7 * 100)


@settings(max_examples=50)
@given(TIMES, st.floats(0, 100), st.integers(1, 50), TIMES)
def test_exposed_time_is_never_more_than_all_of_it_nor_less_than_what_does_not_fit(
    transfer: float, latency: float, parts: int, beside: float
) -> None:
    everything = transfer + latency * parts
    for exposed in (exposed_in_buckets, exposed_in_units):
        result = exposed(transfer, latency, parts, beside)
        assert max(0.0, everything - beside) - 1e-6 <= result <= everything + 1e-6
