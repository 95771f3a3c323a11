"""Collectives inside forward and backward, as autograd functions on plain tensors. No other file has any.

Each opens a communication region that names the mesh dimension; buffers are contiguous in both directions. The backward
is correct for a loss that is the sum of the ranks' losses on different parts and, after `copy` and `join`, for a loss
that every rank of the group computes identically.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from dtk.parallel.regions import communication

# torch 2.13 renamed both: the old names warn there, and the new ones do not exist in earlier versions.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Transform = Callable[[Tensor], Tensor]  # An operation on a plain tensor over a given axis.


@dataclass(frozen=True, slots=True)
class Axis:
    """This rank's group along one mesh dimension."""

    name: str
    group: dist.ProcessGroup
    rank: int
    size: int


def gather(x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Concatenate the ranks' parts along `dim`; backward reduce-scatters. For computation that differs per rank."""
    return _apply(x, lambda x: all_gather(x, dim, axis), lambda gradient: _scattered_sum(gradient, dim, axis))


def scatter_sum(x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Sum over the ranks and keep this rank's part along `dim`; backward gathers."""
    return _apply(x, lambda x: _scattered_sum(x, dim, axis), lambda gradient: all_gather(gradient, dim, axis))


def copy(x: Tensor, axis: Axis) -> Tensor:
    """Return `x`, which is replicated and used for different parts on each rank; backward sums."""
    return _apply(x, lambda x: x.view_as(x), lambda gradient: _reduced(gradient, axis))


def reduce(x: Tensor, axis: Axis) -> Tensor:
    """Sum over the ranks, for a replicated result; backward returns the gradient unchanged."""
    return _apply(x, lambda x: _reduced(x, axis), lambda gradient: gradient)


def join(x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Concatenate the ranks' parts along `dim` for replicated computation; backward keeps this rank's part."""
    return _apply(x, lambda x: all_gather(x, dim, axis), lambda g: g.chunk(axis.size, dim)[axis.rank].contiguous())


def exchange(x: Tensor, split: int, concatenate: int, axis: Axis) -> Tensor:
    """Send the parts along `split` to the ranks and concatenate theirs along `concatenate`; backward is the inverse."""
    return _apply(
        x, lambda x: _exchanged(x, split, concatenate, axis), lambda g: _exchanged(g, concatenate, split, axis)
    )


@dataclass(frozen=True, slots=True)
class Arriving:
    """A pending receive from the previous rank of an axis, while `sent` is sent to the next one."""

    sent: Tensor
    received: Tensor
    works: list[dist.Work]
    axis: Axis

    def wait(self) -> Tensor:
        """Wait for the tensor of the previous rank and return it."""
        with communication("recv", self.received.nbytes, self.axis.name):
            for work in self.works:
                work.wait()
        return self.received


def shift(x: Tensor, axis: Axis) -> Arriving:
    """Start sending `x` to the next rank and receiving the previous rank's tensor, outside autograd."""
    x, ranks = x.contiguous(), axis.size
    received = torch.empty_like(x)
    calls = [
        dist.P2POp(dist.isend, x, group=axis.group, group_peer=(axis.rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, group=axis.group, group_peer=(axis.rank - 1) % ranks),
    ]
    with communication("send", x.nbytes, axis.name):
        return Arriving(x, received, dist.batch_isend_irecv(calls), axis)


def exchange_rows(x: Tensor, sent: Sequence[int], received: Sequence[int], axis: Axis, home: int) -> Tensor:
    """Send `sent[i]` rows of x to each rank i and return the `received` rows in rank order; backward is the inverse.

    `home` are rows of this rank's own tokens, whose bytes the region counts: those from others depend on values.
    """
    back = partial(_exchanged_rows, sent=received, received=sent, axis=axis, home=home)
    return _apply(x, lambda x: _exchanged_rows(x, sent, received, axis, home), back)


def exchange_counts(counts: Tensor, axis: Axis) -> Tensor:
    """Return [ranks, ...], the counts that each rank has for this one; `counts[i]` is for rank i. Outside autograd."""
    return _exchanged(counts, 0, 0, axis)


def cross_entropy_sum(logits: Tensor, targets: Tensor, ignored: int, axis: Axis) -> Tensor:
    """Return the summed cross-entropy, equal on all ranks, of logits whose vocabulary is sharded over them.

    `logits` are float32 [samples, vocabulary / ranks], this rank's shard; `targets` are int64 [samples].
    """
    return cast(Tensor, _CrossEntropySum.apply(logits, targets, ignored, axis))  # type: ignore[no-untyped-call]


def all_reduce_(x: Tensor, axis: Axis, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """Reduce over the ranks in place, outside autograd."""
    with communication("all_reduce", x.nbytes, axis.name):
        dist.all_reduce(x, op=op, group=axis.group)
    return x


def all_gather(x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Concatenate the ranks' parts along `dim`, outside autograd."""
    parts = x.new_empty((axis.size, *x.shape))
    with communication("all_gather", parts.nbytes, axis.name):
        all_gather_single(parts.flatten(0, 1) if x.dim() else parts, x.contiguous(), group=axis.group)
    return parts.movedim(0, dim).flatten(dim, dim + 1)


def _parts(x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Split `x` along `dim` into [ranks, ...], one part for each rank of the group."""
    cut = x.reshape(*x.shape[:dim], axis.size, x.shape[dim] // axis.size, *x.shape[dim + 1 :])
    return cut.movedim(dim, 0).contiguous()


def _scattered_sum(x: Tensor, dim: int, axis: Axis) -> Tensor:
    parts = _parts(x, dim, axis)
    own = torch.empty_like(parts[0])
    with communication("reduce_scatter", parts.nbytes, axis.name):
        reduce_scatter_single(own, parts.flatten(0, 1), group=axis.group)
    return own


def _exchanged(x: Tensor, split: int, concatenate: int, axis: Axis) -> Tensor:
    parts = _parts(x, split, axis)
    received = torch.empty_like(parts)
    with communication("all_to_all", parts.nbytes, axis.name):
        dist.all_to_all_single(received, parts, group=axis.group)
    return received.movedim(0, concatenate).flatten(concatenate, concatenate + 1)


def _exchanged_rows(x: Tensor, sent: Sequence[int], received: Sequence[int], axis: Axis, home: int) -> Tensor:
    result = x.new_empty((sum(received), *x.shape[1:]))
    with communication("all_to_all", home * prod(x.shape[1:]) * x.element_size(), axis.name):
        dist.all_to_all_single(result, x.contiguous(), list(received), list(sent), group=axis.group)
    return result


class _Linear(Function):
    """A linear collective; backward applies its transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Transform, transpose: Transform) -> Tensor:
        ctx.transpose = transpose
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.transpose(gradient), None, None


def _apply(x: Tensor, run: Transform, transpose: Transform) -> Tensor:
    return cast(Tensor, _Linear.apply(x, run, transpose))  # type: ignore[no-untyped-call]


def _reduced(x: Tensor, axis: Axis) -> Tensor:
    return all_reduce_(x.clone(memory_format=torch.contiguous_format), axis)


class _CrossEntropySum(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int, axis: Axis) -> Tensor:
        largest = all_reduce_(logits.amax(1), axis, dist.ReduceOp.MAX)
        shifted = logits - largest.unsqueeze(1)
        own = targets - axis.rank * logits.shape[1]
        inside = (own >= 0) & (own < logits.shape[1])
        own = own.masked_fill_(~inside, 0).unsqueeze(1)
        picked = shifted.gather(1, own).squeeze(1).masked_fill_(~inside, 0.0)
        exponentials = shifted.exp_()
        totals, of_targets = all_reduce_(torch.stack((exponentials.sum(1), picked)), axis)
        counts = targets != ignored
        ctx.save_for_backward(exponentials.div_(totals.unsqueeze(1)), own, inside & counts, counts)
        loss: Tensor = (totals.log() - of_targets).masked_fill_(~counts, 0.0).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        probabilities, own, hits, counts = ctx.saved_tensors
        result = probabilities * (counts * gradient).unsqueeze(1)
        result.scatter_add_(1, own, -(hits * gradient).unsqueeze(1))
        return result, None, None, None
