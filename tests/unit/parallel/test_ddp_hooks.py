"""Compressed gradients: what is sent with the next step, and what factors have."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from dtk.parallel.ddp_hooks import Compressed, Hook, Int8, PowerSGD, SixteenBit, TopK


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients_of(make: Callable[[list[nn.Parameter]], Hook], steps: int) -> tuple[Any, list[Any], list[Any]]:
    """(hook, gradients after each step, those that backward made) of a small model under DDP."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 4))
    parameters = list(model.parameters())
    hook, wrapped = make(parameters), DistributedDataParallel(model, init_sync=False)
    wrapped.register_comm_hook(None, hook.run)
    result, exact = [], []
    for step in range(steps):
        x = torch.randn(5, 40, generator=torch.Generator().manual_seed(step))
        exact.append(torch.autograd.grad(model(x).square().sum(), parameters))
        model.zero_grad()
        wrapped(x).square().sum().backward()
        result.append([p.grad.clone() for p in parameters if p.grad is not None])
    return hook, result, exact


@pytest.mark.parametrize("kind", [Int8, TopK])
def test_what_is_left_out_of_a_step_is_sent_with_the_next(kind: type[Compressed], alone: None) -> None:
    def make(parameters: list[nn.Parameter]) -> Hook:
        hook = kind(None, parameters, True)
        if isinstance(hook, TopK):
            hook.ratio = 0.1
        return hook

    hook, result, exact = gradients_of(make, 4)
    parts = torch.split(hook.state()["error"], [gradient.numel() for gradient in exact[0]])
    for i, error in enumerate(parts):
        sent, count = sum(step[i] for step in result), sum(step[i] for step in exact)
        # int8 rounds once more after the average, which no error remembers.
        tolerance = float(count.abs().max()) / 50 if kind is Int8 else 1e-4
        assert torch.allclose(sent + error.view_as(count), count, atol=tolerance)
    if kind is TopK:
        assert [int((gradient != 0).sum()) for gradient in result[0]] == [120, 3, 12, 1]


def test_without_feedback_nothing_is_remembered(alone: None) -> None:
    hook, result, exact = gradients_of(lambda parameters: Int8(None, parameters, False), 1)
    assert hook.state() == {} and hook.figures() == {}
    for sent, value in zip(result[0], exact[0], strict=True):
        assert torch.allclose(sent, value, atol=float(value.abs().max()) / 50)


def test_powersgd_sends_whole_gradients_first_then_factors_of_its_rank(alone: None) -> None:
    hook, result, exact = gradients_of(lambda parameters: PowerSGD(None, parameters, True, 2), 4)
    for sent, value in zip(result[0], exact[0], strict=True):
        assert torch.allclose(sent, value, atol=1e-4), "whole in the first steps"
    assert int(torch.linalg.matrix_rank(result[3][0])) <= 2 < int(torch.linalg.matrix_rank(exact[3][0]))
    assert torch.allclose(result[3][1], exact[3][1], atol=1e-4), "a bias is sent whole"
    state = hook.state()
    assert int(state["steps"]) == 4 and state["factor"].numel() == 2 * 40, "of the large matrix alone"
    again = PowerSGD(None, list(hook.sizes), True, 2)
    again.restore(state)
    assert again.power.iter == 4


def test_averages_that_float16_cannot_hold_are_counted(alone: None) -> None:
    hook = gradients_of(lambda parameters: SixteenBit(None, torch.float16), 1)[0]
    assert hook.figures() == {"float16_overflows": 0.0}
    assert SixteenBit(None, torch.bfloat16).figures() == {}
