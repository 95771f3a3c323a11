"""Collectives with a backward: values, gradients of the whole computation, and the regions that they open."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dtk.parallel.collectives import (
    Axis,
    all_gather,
    all_reduce_,
    copy,
    cross_entropy_sum,
    exchange,
    exchange_counts,
    exchange_rows,
    gather,
    join,
    reduce,
    scatter_sum,
)
from tests.unit.rank_threads import on_ranks, whole_axis

RANKS = 2


def parts(seed: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(RANKS)]


def spread(run: Callable[[Tensor, Axis], Tensor], inputs: list[Tensor], weights: list[Tensor]) -> list[Any]:
    """(output, gradient of the input) of each rank, for the loss sum(output * weight) of that rank."""

    def work(rank: int) -> tuple[Tensor, Tensor]:
        x = inputs[rank].clone().requires_grad_()
        y = run(x, whole_axis(rank, RANKS))
        (y * weights[rank]).sum().backward()
        assert x.grad is not None and y.is_contiguous()
        return y.detach(), x.grad

    return on_ranks(RANKS, work)


def whole(run: Callable[[list[Tensor]], list[Tensor]], inputs: list[Tensor], weights: list[Tensor]) -> list[Any]:
    """The same in one process, of the sum of all ranks' losses."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = run(leaves)
    sum((y * weight).sum() for y, weight in zip(outputs, weights, strict=True)).backward()  # type: ignore[union-attr]
    return [(y.detach(), x.grad) for y, x in zip(outputs, leaves, strict=True)]


LINEAR = {
    "gather rows": (lambda x, axis: gather(x, 0, axis), lambda xs: [torch.cat(xs, 0)] * RANKS, (4, 6), (8, 6)),
    "gather columns": (lambda x, axis: gather(x, 1, axis), lambda xs: [torch.cat(xs, 1)] * RANKS, (4, 6), (4, 12)),
    "scatter_sum": (lambda x, axis: scatter_sum(x, 1, axis), lambda xs: list(sum(xs).chunk(2, 1)), (4, 6), (4, 3)),
    "exchange": (
        lambda x, axis: exchange(x, 0, 1, axis),
        lambda xs: [torch.cat([x.chunk(2, 0)[rank] for x in xs], 1) for rank in range(RANKS)],
        (4, 6),
        (2, 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_collective_and_its_backward_are_those_of_the_whole(name: str) -> None:
    run, reference, entering, leaving = LINEAR[name]
    inputs, weights = parts(1, *entering), parts(2, *leaving)
    for result, expected in zip(spread(run, inputs, weights), whole(reference, inputs, weights), strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(result, expected, strict=True))


def test_what_ranks_hold_alike_enters_by_copy_and_leaves_by_reduce() -> None:
    (x, _), weights = parts(3, 4), parts(4, 4)
    for y, gradient in spread(copy, [x, x], weights):
        assert torch.equal(y, x) and torch.allclose(gradient, weights[0] + weights[1])
    inputs, weight = parts(5, 4), weights[0]
    for y, gradient in spread(reduce, inputs, [weight, weight]):
        assert torch.allclose(y, inputs[0] + inputs[1]) and torch.equal(gradient, weight)


def test_join_gives_each_rank_the_gradient_of_its_own_part() -> None:
    inputs, (weight, _) = parts(6, 3, 2), parts(7, 3, 4)
    results = spread(lambda x, axis: join(x, 1, axis), inputs, [weight, weight])
    for rank, (y, gradient) in enumerate(results):
        assert torch.equal(y, torch.cat(inputs, 1))
        assert torch.equal(gradient, weight[:, 2 * rank : 2 * rank + 2])


def test_rows_travel_in_unequal_numbers_and_their_gradients_come_back() -> None:
    counts = [[1, 3], [2, 0]]  # Rank 0 keeps 1 row and sends 3; rank 1 sends 2 and keeps none.
    inputs = [torch.arange(4.0).view(4, 1), 10 + torch.arange(2.0).view(2, 1)]

    def work(rank: int) -> tuple[list[float], list[float]]:
        axis, sent = whole_axis(rank, RANKS, "ep"), counts[rank]
        received = exchange_counts(torch.tensor(sent), axis).tolist()
        assert received == [of_rank[rank] for of_rank in counts]
        x = inputs[rank].clone().requires_grad_()
        y = exchange_rows(x, sent, received, axis, len(x))
        (y * (rank + 1)).sum().backward()
        assert x.grad is not None
        return y.flatten().tolist(), x.grad.flatten().tolist()

    assert on_ranks(RANKS, work) == [([0.0, 10.0, 11.0], [1.0, 2.0, 2.0, 2.0]), ([1.0, 2.0, 3.0], [1.0, 1.0])]


def test_counts_of_several_experts_are_exchanged_by_rank() -> None:
    tables = [torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [7, 8]])]
    received = on_ranks(RANKS, lambda rank: exchange_counts(tables[rank], whole_axis(rank, RANKS)).tolist())
    assert received == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]


def test_cross_entropy_over_a_divided_vocabulary_is_that_of_whole_logits() -> None:
    generator = torch.Generator().manual_seed(8)
    logits = (20 * torch.randn(7, 10, generator=generator)).requires_grad_()
    targets = torch.tensor([0, 4, 5, 9, -100, 3, -100])
    expected = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    (3 * expected).backward()
    assert logits.grad is not None

    def work(rank: int) -> tuple[Tensor, Tensor]:
        own = logits.detach().chunk(RANKS, 1)[rank].clone().requires_grad_()
        loss = cross_entropy_sum(own, targets, -100, whole_axis(rank, RANKS))
        (3 * loss).backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        return loss.detach(), own.grad

    for rank, (loss, gradient) in enumerate(on_ranks(RANKS, work)):
        assert torch.allclose(loss, expected)
        assert torch.allclose(gradient, logits.grad.chunk(RANKS, 1)[rank], atol=1e-6)


def test_scalars_and_other_reductions_outside_autograd() -> None:
    def work(rank: int) -> tuple[list[float], float]:
        axis = whole_axis(rank, RANKS)
        gathered = all_gather(torch.tensor([float(rank)]), 0, axis).tolist()
        return gathered, float(all_reduce_(torch.tensor(float(rank)), axis, torch.distributed.ReduceOp.MAX))

    assert on_ranks(RANKS, work) == [([0.0, 1.0], 1.0)] * 2
