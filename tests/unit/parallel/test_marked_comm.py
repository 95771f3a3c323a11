"""FSDP2's comm objects: the same collectives, each inside a region with the bytes of its full buffer."""

import pytest
import torch
import torch.distributed as dist

from dtk.parallel import regions
from dtk.parallel.marked_comm import MarkedAllGather, MarkedReduceScatter
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
