"""What the hosts agree on: exact sums over the ranks that count, and who wants to stop."""

import pytest
import torch

from diagnostics.contract.mesh import Mesh
from dtk.parallel.control import agree, list_over_ranks, sum_over_ranks
from dtk.parallel.regions import observe
from tests.unit.rank_threads import context, on_ranks

TWO = Mesh(dp_replicate=2)


def test_targets_and_samples_are_summed_over_data_parallel_ranks() -> None:
    def work(rank: int) -> tuple[bool, bool, int, int]:
        agreed = agree(context(rank, TWO), False, 10 + rank, [2**62, -(2**62) - 1][rank])
        return agreed.stop, agreed.enough, agreed.valid_targets, agreed.samples

    assert on_ranks(2, work) == [(False, False, 21, 2**64 - 1)] * 2


def test_ranks_that_share_samples_count_once() -> None:
    result = on_ranks(4, lambda rank: agree(context(rank, Mesh(dp_replicate=2, tp=2)), False, 5, 7).valid_targets)
    assert result == [10] * 4


@pytest.mark.parametrize(("stop", "enough", "expected"), [(True, False, (True, False)), (False, True, (True, True))])
def test_one_rank_stops_all(stop: bool, enough: bool, expected: tuple[bool, bool]) -> None:
    def work(rank: int) -> tuple[bool, bool]:
        asks = rank == 1
        agreed = agree(context(rank, TWO), stop and asks, 1, enough=enough and asks)
        return agreed.stop, agreed.enough

    assert on_ranks(2, work) == [expected] * 2


def test_alone_nothing_is_sent() -> None:
    def work(rank: int) -> tuple[int, list[int], list[str]]:
        opened: list[str] = []

        class Names:
            def enter(self, region: object) -> None:
                opened.append(str(region))

            def exit(self, region: object) -> None:
                pass

        observe([Names()])
        try:
            place = context(rank, Mesh())
            agreed = agree(place, False, 4)
            return agreed.valid_targets, list_over_ranks(place, 9), opened
        finally:
            observe([])

    assert on_ranks(1, work) == [(4, [9], [])]


def test_a_number_of_each_rank_in_order_and_sums_in_place() -> None:
    def work(rank: int) -> tuple[list[int], list[float], bool]:
        place, values = context(rank, TWO), torch.tensor([1.5, float(rank)], dtype=torch.float64)
        summed = sum_over_ranks(place, values)
        return list_over_ranks(place, 7 * rank), summed.tolist(), summed is values

    assert on_ranks(2, work) == [([0, 7], [3.0, 1.0], True)] * 2
