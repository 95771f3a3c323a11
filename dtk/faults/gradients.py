"""Gradients that are never ready on one rank, or reduced too often, and memory that grows with the steps."""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.parallel.blocks import blocks_of
from dtk.tasks.base import loss_of


class UnusedParameters(FaultyLoop, name="unused_parameters"):
    """One rank's batch does not reach the last block, whose gradients its peers wait for.

    The marked line is the forward pass: DDP detects it there in the next iteration.
    """

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        if self.strikes(self.step_number):
            blocks_of(self.parts.model)[-1].forward = lambda x, mask=None: x  # type: ignore[method-assign]
        strategy, wrapped = self.parts.strategy, self.parts.wrapped
        total = torch.zeros((), device=self.context.device)
        for i, batch in enumerate(batches):
            with strategy.accumulate(wrapped, last=i == len(batches) - 1):
                loss = loss_of(self.parts.task, wrapped(batch.inputs), batch.targets)  # fault: unused_parameters
                (loss * factor).backward()  # type: ignore[no-untyped-call]
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
