"""Gradients that are kept, or that never become ready."""

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dtk.parallel.blocks import blocks_of
from tests.unit.faults.conftest import Faulty


def test_a_leak_keeps_the_gradients_of_every_later_step(faulty: Faulty) -> None:
    loop = faulty("leak", step=2)
    assert loop.run()
    assert [len(step) for step in loop.history] == [len(list(loop.parts.model.parameters()))] * 3


def test_the_last_block_gets_no_gradients_from_the_step_on(faulty: Faulty) -> None:
    loop = faulty("unused_parameters", step=2)
    weight = next(iter(blocks_of(loop.parts.model)[-1].parameters()))
    first = next(iter(blocks_of(loop.parts.model)[0].parameters()))
    reached: list[tuple[bool, bool]] = []
    clip = loop._clip

    def look() -> torch.Tensor | None:
        reached.append((first.grad is not None, weight.grad is not None))
        return clip()

    loop._clip = look
    assert loop.run() and reached == [(True, True), *[(True, False)] * 3]


def test_gradients_of_every_parameter_are_averaged_once(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the group over which DDP would have averaged them, which does not reduce them as well."""
    loop = faulty("per_parameter_all_reduce")
    wrapped = DistributedDataParallel(loop.parts.model, process_group=dist.new_group([0]))
    loop.parts = dataclasses.replace(loop.parts, wrapped=wrapped)
    reduced: list[object] = []
    all_reduce = dist.all_reduce

    def record(tensor: torch.Tensor, *args: Any, group: Any = None, **more: Any) -> Any:
        reduced.append(group)
        return all_reduce(tensor, *args, group=group, **more)

    monkeypatch.setattr(dist, "all_reduce", record)
    assert loop.run() and wrapped.process_group is not dist.group.WORLD
    assert reduced.count(wrapped.process_group) == 4 * len(list(loop.parts.model.parameters()))


@pytest.mark.parametrize("name", ["early_stop", "uneven_batches"])
def test_a_rank_that_ends_early(faulty: Faulty, name: str) -> None:
    loop = faulty(name, step=3)
    assert loop.run() is False and loop.state.step == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_reduces_after_every_micro_batch_of_one_step(faulty: Faulty, rank: int) -> None:
    loop = faulty("accumulation_boundary", step=2, rank=rank)
    last: list[bool] = []
    loop.parts.strategy.accumulate = lambda wrapped, last: (seen.append(last), nullcontext())[1]
    seen = last
    assert loop.run()
    original, struck = [False, True], [True, True]
    assert last == [*original, *(struck if rank == 0 else original), *original, *original]
