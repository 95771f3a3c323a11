"""FSDP2's comm objects: the same collectives, each inside a region with its bytes; int8 on the wire."""

import pytest
import torch
import torch.distributed as dist

from dtk.parallel import regions
from dtk.parallel.marked_comm import MarkedAllGather, MarkedReduceScatter, QuantizedAllGather, QuantizedReduceScatter
from dtk.parallel.regions import Region, observe
from tests.unit.rank_threads import on_ranks


class Seen:
    def __init__(self) -> None:
        self.calls: set[tuple[str | None, int, str]] = set()

    def enter(self, region: Region) -> None:
        self.calls.add((region.op, region.size_bytes, region.group))

    def exit(self, region: Region) -> None:
        pass


def test_gather_and_scatter_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process has one rank, and so one innermost region; that of two ranks as threads may be left behind.
    monkeypatch.setattr(regions, "_current", None)

    def work(rank: int) -> tuple[list[float], list[float]]:
        group = dist.group.WORLD
        assert group is not None
        gather, scatter = MarkedAllGather("dp_shard"), MarkedReduceScatter("expert_shard")
        whole = gather.allocate((4,), dtype=torch.float32, device=torch.device("cpu"))
        own = torch.full((2,), float(rank))
        gather(output_tensor=whole, input_tensor=own, group=group, async_op=False)
        summed = torch.empty(2)
        scatter(output_tensor=summed, input_tensor=whole, group=group, op=dist.ReduceOp.SUM)
        return whole.tolist(), summed.tolist()

    seen = Seen()
    observe([seen])
    try:
        results = on_ranks(2, work)
    finally:
        observe([])
    assert results == [([0.0, 0.0, 1.0, 1.0], [0.0, 0.0]), ([0.0, 0.0, 1.0, 1.0], [2.0, 2.0])]
    assert seen.calls == {("all_gather", 16, "dp_shard"), ("reduce_scatter", 16, "expert_shard")}


SIZES = [300, 5, 64]
RANKS = 3


def values(rank: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows * sum(SIZES), generator=torch.Generator().manual_seed(rank))


@pytest.fixture(autouse=True)
def no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one rank, and so one innermost region; that of ranks as threads may be left behind."""
    monkeypatch.setattr(regions, "_current", None)


def test_all_ranks_gather_the_same_values_each_at_most_half_a_step_off() -> None:
    def work(rank: int) -> torch.Tensor:
        whole = torch.empty(RANKS * sum(SIZES))
        QuantizedAllGather("dp_shard", SIZES, 0)(whole, values(rank), dist.group.WORLD)
        return whole

    results = on_ranks(RANKS, work)
    assert all(torch.equal(result, results[0]) for result in results), "a rank uses what it sent, too"
    exact = torch.cat([values(rank) for rank in range(RANKS)])
    assert not torch.equal(results[0], exact)
    assert bool(((results[0] - exact).abs() <= exact.abs().max() / 254 * 1.001).all())


def test_a_gather_of_secondary_shards_is_exact() -> None:
    def work(rank: int) -> torch.Tensor:
        whole = torch.empty(RANKS * sum(SIZES))
        QuantizedAllGather("dp_shard", SIZES, RANKS)(whole, values(rank), dist.group.WORLD)
        return whole

    exact = torch.cat([values(rank) for rank in range(RANKS)])
    assert all(torch.equal(result, exact) for result in on_ranks(RANKS, work))


@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG])
def test_gradients_are_summed_or_averaged_in_float32(op: dist.ReduceOp.RedOpType) -> None:
    def work(rank: int) -> torch.Tensor:
        own = torch.empty(sum(SIZES))
        QuantizedReduceScatter("dp_shard", SIZES)(own, values(rank, RANKS), dist.group.WORLD, op)
        return own

    results = torch.stack(on_ranks(RANKS, work))
    sent = torch.stack([values(rank, RANKS).view(RANKS, -1) for rank in range(RANKS)])
    exact = sent.sum(0) if op == dist.ReduceOp.SUM else sent.mean(0)
    assert bool(((results - exact).abs() <= RANKS * sent.abs().max() / 254 * 1.001).all())
    assert not torch.equal(results, exact)
