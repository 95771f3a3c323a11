"""Sizes on the wire: never less than what is sent, the same for every bucket that holds the same parameters."""

import pytest
from hypothesis import given, settings, strategies as st

from dtk.parallel.compression import BLOCK, BLOCK_BYTES, factor_rank, int8_blocks, kept, rounding_bytes, topk_bytes

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_blocks_hold_all_elements_and_divide_over_the_ranks(sizes: list[int], ranks: int) -> None:
    blocks = int8_blocks(sizes, ranks)
    assert blocks % ranks == 0 and blocks * BLOCK >= sum(sizes)
    needed = sum(-(-size // BLOCK) for size in sizes)
    assert needed <= blocks < needed + ranks, "filled up by less than one round"


@given(SIZES, st.floats(1e-6, 1.0), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_topk_sends_at_least_one_element_of_each_parameter_and_at_most_all(
    sizes: list[int], ratio: float, ranks: int
) -> None:
    assert all(1 <= kept(size, ratio) <= size for size in sizes)
    split = sum(topk_bytes([size], ratio, ranks) for size in sizes)
    assert topk_bytes(sizes, ratio, ranks) == split, "it does not depend on the buckets"
    assert split <= 8 * ranks * sum(sizes)


def test_by_hand() -> None:
    assert (kept(1000, 0.01), kept(1001, 0.01), kept(3, 0.01)) == (10, 11, 1)
    assert int8_blocks([256, 257], 2) == 4 and BLOCK_BYTES == 260
    assert topk_bytes([1000, 3], 0.01, 4) == 4 * 8 * 11


def test_a_unit_without_parameters_rounds_nothing() -> None:
    """The root unit of a stage in the middle of a pipeline."""
    assert [rounding_bytes(0, 4, gathers) for gathers in (True, False)] == [0, 0]


@pytest.mark.parametrize(
    ("shape", "rank", "expected"),
    [((64, 64), 4, 4), ((64, 2), 4, 0), ((8, 8), 4, 0), ((64, 1), 4, 0), ((99, 99), 1, 1)],
)
def test_a_matrix_that_factors_hardly_shrink_is_sent_whole(shape: tuple[int, int], rank: int, expected: int) -> None:
    assert factor_rank(*shape, rank) == expected
