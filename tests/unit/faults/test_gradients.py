"""Gradients that are kept, or that never become ready."""

import torch

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
