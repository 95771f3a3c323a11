"""Faults in steps and gradients: too few steps, gradients that are never ready or reduced too often, a leak."""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.parallel.blocks import blocks_of
from dtk.parallel.control import sum_over_ranks
from dtk.tasks.base import loss_of


class UnevenBatches(FaultyLoop, name="uneven_batches"):
    """One rank's part of the data is shorter: it continues with the code after the epoch while the others train."""

    def advance(self) -> bool:
        """Run one step, or end this rank's epoch."""
        if self.strikes(self.step_number):
            sum_over_ranks(self.context, torch.zeros(4, dtype=torch.float64))  # fault: uneven_batches
            return True
        return super().advance()


class EarlyStop(FaultyLoop, name="early_stop"):
    """One rank decides on its own that the loss will not decrease any further."""

    def advance(self) -> bool:
        """Run one step; return whether this rank stops."""
        if self.strikes(self.step_number):
            return True  # fault: early_stop
        return super().advance()


class AccumulationBoundary(FaultyLoop, name="accumulation_boundary"):
    """One rank reduces its gradients after every micro-batch of a step, the others only after the last one."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        return _accumulate(self, batches, factor, 1 if self.strikes(self.step_number) else len(batches))


class UnusedParameters(FaultyLoop, name="unused_parameters"):
    """One rank's batch does not reach the last block, whose gradients its peers wait for.

    The marked line is the forward pass: DDP detects it there in the next iteration.
    """

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        if self.strikes(self.step_number):
            blocks_of(self.parts.model)[-1].forward = lambda x, mask=None: x  # type: ignore[method-assign]
        return _accumulate(self, batches, factor, len(batches))


def _accumulate(loop: FaultyLoop, batches: list[Batch], factor: float, boundary: int) -> Tensor:
    """Run the micro-batches and reduce the gradients after every `boundary` of them; return the summed loss."""
    strategy, wrapped = loop.parts.strategy, loop.parts.wrapped
    total = torch.zeros((), device=loop.context.device)
    for i, batch in enumerate(batches):
        with strategy.accumulate(wrapped, last=(i + 1) % boundary == 0):
            loss = loss_of(loop.parts.task, wrapped(batch.inputs), batch.targets)  # fault: unused_parameters
            (loss * factor).backward()  # type: ignore[no-untyped-call]  # fault: accumulation_boundary
        total += loss.detach()
    return total


class SyncEveryMicroBatch(FaultyLoop, name="sync_every_micro_batch"):
    """Gradients are reduced after every micro-batch, as without no_sync."""

    def _prepare(self) -> None:
        self.parts.strategy.accumulate = self._accumulate_context  # type: ignore[method-assign]

    def _accumulate_context(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        return nullcontext()  # fault: sync_every_micro_batch


class PerParameterAllReduce(FaultyLoop, name="per_parameter_all_reduce"):
    """Hand-written data parallelism: one blocking all_reduce per parameter, after backward."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        wrapped, dp_size = cast(DistributedDataParallel, self.parts.wrapped), self.parts.strategy.mesh.dp_size
        with wrapped.no_sync():
            total = super()._accumulate(batches, factor)
        for parameter in self.parts.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=wrapped.process_group)  # fault: per_parameter_all_reduce
                parameter.grad /= dp_size
        return total


class Leak(FaultyLoop, name="leak"):
    """The gradients of every step, or the weights where an engine has freed them, are kept for a final histogram."""

    def _prepare(self) -> None:
        self.history: list[list[Tensor]] = []

    def _clip(self) -> Tensor | None:
        if self.started(self.step_number):
            parameters = self.parts.model.parameters()
            self.history.append([(p.data if p.grad is None else p.grad).clone() for p in parameters])  # fault: leak
        return super()._clip()
