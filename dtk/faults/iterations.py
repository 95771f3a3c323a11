"""Faults in which ranks run different numbers of steps, or synchronize after different numbers of micro-batches."""

import torch
from torch import Tensor

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
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
        boundary = 1 if self.strikes(self.step_number) else len(batches)
        strategy, wrapped = self.parts.strategy, self.parts.wrapped
        total = torch.zeros((), device=self.context.device)
        for i, batch in enumerate(batches):
            with strategy.accumulate(wrapped, last=(i + 1) % boundary == 0):
                loss = loss_of(self.parts.task, wrapped(batch.inputs), batch.targets)
                (loss * factor).backward()  # type: ignore[no-untyped-call]  # fault: accumulation_boundary
            total += loss.detach()
        return total
