"""Faults in which one rank exits, hangs or is late while the others wait for it."""

import os
import queue
import signal
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.parallel.control import Agreement
from dtk.parallel.regions import region
from dtk.sharding.base import local
from dtk.train.loop import StepResult


class Raises(FaultyLoop, name="exception"):
    """An exception in the forward pass of one rank."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        if self.strikes(self.step_number):
            raise ValueError("sample 17 holds a token that is not in the vocabulary")  # fault: exception
        return super()._accumulate(batches, factor)


class Swallowed(FaultyLoop, name="swallowed_exception"):
    """One rank catches an exception, and skips the batch together with its collectives."""

    def _step(self, step: int, batches: list[Batch], agreement: Agreement) -> StepResult:
        try:
            return super()._step(step, batches, agreement)
        except ValueError:
            print("skipping a bad batch")
            traceback.print_exc()
            return StepResult(torch.zeros((), device=self.context.device), agreement.valid_targets, None)

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        if self.strikes(self.step_number):
            raise ValueError("sample 17 holds a token that is not in the vocabulary")  # fault: swallowed_exception
        return super()._accumulate(batches, factor)


class Killed(FaultyLoop, name="sigkill"):
    """One rank is killed, as by the kernel when memory runs out, right after an all_reduce of the norms.

    Only in the run's first attempt: what killed a process once need not return, so a restart goes on.

    The line at which a rank was killed cannot be observed: the marked one is its last recorded call.
    """

    def _clip(self) -> Tensor | None:
        if self.step_number == self.fault.step and self.recorder.attempt == 0:
            gradients = [local(p.grad) for p in self.parts.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)  # fault: sigkill
            if self.context.rank == self.fault.rank:
                os.kill(os.getpid(), signal.SIGKILL)
        return super()._clip()


class OutOfMemory(FaultyLoop, name="out_of_memory"):
    """One rank allocates more memory than any host has, and less than a process can address."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        if self.strikes(self.step_number):
            torch.empty(1 << 46, dtype=torch.uint8, device=self.context.device)  # fault: out_of_memory
        return super()._accumulate(batches, factor)


class LoaderStuck(FaultyLoop, name="data_loader_stuck"):
    """The data loader of one rank waits for a worker that died silently."""

    def _batches(self, step: int) -> list[Batch]:
        if self.strikes(step + 1):
            batches: queue.Queue[Any] = queue.Queue()
            with region("data"):
                return [batches.get()]  # fault: data_loader_stuck
        return super()._batches(step)


class Straggler(FaultyLoop, name="straggler"):
    """One rank is late in every step: it tokenizes data again that the others have cached. No deadlock."""

    def _batches(self, step: int) -> list[Batch]:
        if self.context.rank == self.fault.rank and self.started(step + 1):
            time.sleep(self.fault.delay_s)  # fault: straggler
        return super()._batches(step)


class NotANumber(FaultyLoop, name="nan_on_one_rank"):
    """The logits of one rank overflow; after the reduction every rank's gradients are NaN."""

    def _prepare(self) -> None:
        self.parts.wrapped.register_forward_hook(self._overflow)

    def _overflow(self, model: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        if model.training and self.strikes(self.step_number):
            return logits * 1e39  # fault: nan_on_one_rank
        return logits
