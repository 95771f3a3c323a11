"""Gradients of parameters are found on their way into `.grad`, whatever autograd does with them."""

import torch
from torch import Tensor, nn

from dtk.simulate.step import GradientWatch


def watched(output: Tensor) -> list[Tensor]:
    tensors: list[Tensor] = []
    watch = GradientWatch(tensors.extend)
    watch.follow(output)
    output.sum().backward()
    return tensors


def shapes(tensors: list[Tensor]) -> set[tuple[int, ...]]:
    return {tuple(tensor.shape) for tensor in tensors}


def test_each_parameter_and_nothing_that_flows_between() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    tensors = watched(model(torch.ones(7, 3)))
    assert {(5, 3), (5,), (2, 5), (2,)} <= shapes(tensors)
    assert (7, 5) not in shapes(tensors) and (7, 2) not in shapes(tensors), "gradients of activations"


def test_both_uses_of_a_parameter_and_their_sum() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    tensors = watched(torch.ones(2, 3) @ weight @ weight)
    values = {round(tensor.sum().item(), 3) for tensor in tensors if tensor.shape == (3, 3)}
    assert weight.grad is not None
    total = round(weight.grad.sum().item(), 3)
    assert total in values, "what comes into .grad"
    assert len(values) > 1, "and what each use gave"


def test_a_cast_parameter_shows_its_narrow_gradient_as_well() -> None:
    weight = nn.Parameter(torch.ones(4))
    tensors = watched(weight.to(torch.bfloat16) * 2)
    assert {tensor.dtype for tensor in tensors if tensor.shape == (4,)} == {torch.float32, torch.bfloat16}


def test_the_next_result_replaces_the_last_one() -> None:
    weight = nn.Parameter(torch.ones(2))
    tensors: list[Tensor] = []
    watch = GradientWatch(tensors.extend)
    first, second = weight * 2, weight * 3
    watch.follow(first)
    watch.follow(second)
    first.sum().backward()
    # The hook of the first product is gone; the one on the leaf, which both share, belongs to the second.
    seen = len(tensors)
    second.sum().backward()
    assert len(tensors) > seen


def test_what_needs_no_gradient_is_no_graph() -> None:
    watch = GradientWatch(lambda tensors: None)
    watch.follow(torch.ones(2))
    assert watch._handles == []
