"""FSDP2's collectives with int8 on the wire: what arrives, on ranks as threads of one process."""

import pytest
import torch
import torch.distributed as dist

from dtk.parallel import regions
from dtk.parallel.marked_comm import QuantizedAllGather, QuantizedReduceScatter
from tests.unit.rank_threads import on_ranks

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
