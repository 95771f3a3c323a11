"""The formulas of collectives, on figures worked by hand."""

import math

import pytest
from hypothesis import given, strategies as st

from dtk.plan.timing.alpha_beta import Group, Link, algorithm_s, collective

NVLINK = Link(2e-6, 100e9)
NETWORK = Link(5e-6, 10e9)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def group(ranks: int, per_node: int) -> Group:
    return Group(ranks, per_node, NVLINK, NETWORK)


def test_ring_inside_a_node() -> None:
    # 4 ranks, 1 GB: 6 steps of 2 us, and 2 * 3/4 of 1 GB at 100 GB/s.
    assert algorithm_s("ring", 2, 1e9, group(4, 8)) == pytest.approx(6 * 2e-6 + 0.015)
    assert algorithm_s("ring", 1, 1e9, group(4, 8)) == pytest.approx(3 * 2e-6 + 0.0075)
    assert algorithm_s("ring", 2, 8, group(2, 2)) == pytest.approx(2 * 2e-6 + 8 / 100e9)


def test_ring_over_nodes_leaves_each_node_by_all_adapters() -> None:
    # 16 ranks on 2 nodes of 8: 8 adapters of 10 GB/s are 80 GB/s, less than NVLink's 100; of 30 steps 2 leave a node.
    assert group(16, 8).bytes_per_s == 80e9
    assert algorithm_s("ring", 2, 1e9, group(16, 8)) == pytest.approx(28 * 2e-6 + 2 * 5e-6 + 2 * 15 / 16 / 80)
    # One rank per node has one adapter, and every step is one between nodes.
    assert algorithm_s("ring", 2, 1e9, group(4, 1)) == pytest.approx(6 * 5e-6 + 2 * 3 / 4 / 10)
    # Fast networks do not make NVLink faster.
    assert Group(16, 8, NVLINK, Link(5e-6, 50e9)).bytes_per_s == 100e9


def test_tree_sends_a_little_more_in_far_fewer_steps() -> None:
    # 64 ranks on 8 nodes: up and down 7 steps inside the node and log2(8) = 3 between nodes.
    assert algorithm_s("tree", 2, 1e9, group(64, 8)) == pytest.approx(2 * (7 * 2e-6 + 3 * 5e-6) + 2 / 80)
    assert algorithm_s("tree", 1, 1e9, group(64, 8)) == pytest.approx(7 * 2e-6 + 3 * 5e-6 + 1 / 80)
    assert algorithm_s("chain", 1, 1e9, group(4, 4)) == pytest.approx(3 * 2e-6 + 1 / 100)


def test_torus_is_three_phases() -> None:
    # 2 nodes of 4: reduce_scatter and all_gather in the row, all_reduce of a quarter in the column of 2.
    rows = 2 * (3 * 2e-6 + 3 / 4 / 100)
    column = 2 * 5e-6 + 2 * 1 / 2 * 0.25 / 10
    assert algorithm_s("2-D torus", 2, 1e9, group(8, 4)) == pytest.approx(rows + column)


def test_the_fastest_is_chosen_and_named() -> None:
    assert collective("all_reduce", 1e9, group(8, 8)).algorithm == "ring"
    assert collective("all_reduce", 4, group(512, 8)).algorithm == "tree"
    # A slow network with little latency, many ranks in a node: neither a long ring nor twice the whole size.
    slow = Group(64, 16, Link(50e-6, 100e9), Link(1e-6, 0.1e9))
    chosen = collective("all_reduce", 1e8, slow)
    assert chosen.algorithm == "2-D torus"
    assert chosen.seconds < min(algorithm_s("ring", 2, 1e8, slow), algorithm_s("tree", 2, 1e8, slow))


def test_one_rank_says_nothing_and_unknown_operations_are_refused() -> None:
    for op in OPERATIONS:
        assert collective(op, 1e9, group(1, 8)).seconds == 0
    with pytest.raises(ValueError, match="no formula for scatter"):
        collective("scatter", 1, group(2, 2))


@given(
    op=st.sampled_from(OPERATIONS),
    size=st.floats(0, 1e12),
    nodes=st.integers(1, 512),
    per_node=st.integers(1, 8),
    faster=st.floats(1, 100),
)
def test_never_slower_on_better_links_nor_faster_with_more_bytes(
    op: str, size: float, nodes: int, per_node: int, faster: float
) -> None:
    base = Group(nodes * per_node, per_node, NVLINK, NETWORK)
    seconds = collective(op, size, base).seconds
    better = Link(NVLINK.latency_s, NVLINK.bytes_per_s * faster), Link(NETWORK.latency_s / faster, NETWORK.bytes_per_s)
    assert 0 <= seconds < math.inf
    assert collective(op, size, Group(base.ranks, per_node, *better)).seconds <= seconds
    assert collective(op, 2 * size, base).seconds >= seconds
