"""A rank that runs fewer steps, or reduces its gradients more often."""

from contextlib import nullcontext

import pytest

from tests.unit.faults.conftest import Faulty


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
