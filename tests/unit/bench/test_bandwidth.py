"""Bandwidths are those of nccl-tests: its formulas on round numbers, its rounding of sizes."""

import pytest

from dtk.bench.bandwidth import OPERATIONS, algorithm_bandwidth, bus_bandwidth, size_of, sizes
from dtk.errors import DtkError

# Factors printed in nccl-tests, doc/PERFORMANCE.md, for n = 8; sendrecv_perf has factor 1.
FACTORS = {"all_reduce": 2 * 7 / 8, "all_gather": 7 / 8, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8, "send_recv": 1.0}


def test_bus_bandwidth_has_the_factors_of_nccl_tests() -> None:
    assert set(FACTORS) == set(OPERATIONS)
    for name, factor in FACTORS.items():
        assert OPERATIONS[name].factor(8) == factor
        # 4 GB in 2 s: 2 GB/s by 10^9, not by 2^30.
        assert algorithm_bandwidth(4e9, 2.0) == 2.0
        assert bus_bandwidth(name, 4e9, 2.0, 8) == 2.0 * factor


def test_one_rank_has_no_bus() -> None:
    assert [bus_bandwidth(name, 1e9, 1.0, 1) for name in OPERATIONS] == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("element", [1, 2, 8])
def test_sizes_are_rounded_down_to_equal_aligned_shares(name: str, ranks: int, element: int) -> None:
    for count in (1, 1000, 65536):
        size = OPERATIONS[name].fitted(count, ranks, element)
        unit = ranks * 16 if OPERATIONS[name].divided else element
        assert size % unit == 0 and size % element == 0 and size > 0
        assert count - unit < size <= count or size == unit


def test_sizes_read_and_grow() -> None:
    assert [size_of(text) for text in ("17", "64K", "1MiB", "2g", "8 MB")] == [17, 2**16, 2**20, 2**31, 2**23]
    assert sizes(1024, 20_000, 4) == [1024, 4096, 16384]
    assert sizes(5, 5, 2) == [5]
    for text in ("0", "-1", "1.5M", "", "12Q", "9" * 15 + "T"):
        with pytest.raises(DtkError, match="not a message size"):
            size_of(text)
    with pytest.raises(DtkError, match="larger than the largest"):
        sizes(2048, 1024, 2)
