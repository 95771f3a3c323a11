"""Faults in which sharded parameters are gathered in the wrong place: by one rank only, or all at once."""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.sharding.base import local
from dtk.train.loop import StepResult


class Rank0StateDict(FaultyLoop, name="rank0_state_dict"):
    """One rank saves the weights alone, although gathering a sharded tensor requires all ranks."""

    def _after_step(self, result: StepResult, stopping: bool) -> None:
        if self.strikes(self.state.step):
            state = self.parts.model.state_dict()
            whole = {name: value.full_tensor() for name, value in state.items()}  # fault: rank0_state_dict
            del whole
        super()._after_step(result, stopping)


class Rank0Evaluation(FaultyLoop, name="rank0_evaluation"):
    """One rank evaluates alone, although each forward pass gathers the sharded parameters from all ranks."""

    def _after_step(self, result: StepResult, stopping: bool) -> None:
        if self.strikes(self.state.step):
            batch = self.dataset.validation(np.arange(self.config.train.micro_batch_size))
            with torch.no_grad():
                self.parts.model(batch.inputs)  # fault: rank0_evaluation
            self.parts.strategy.release(self.parts.model)
        super()._after_step(result, stopping)


class FullGather(FaultyLoop, name="full_gather"):
    """All parameters are gathered at once before the forward pass, and stay in memory until the end of backward."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        whole = self._gather() if self.started(self.step_number) else None
        total = super()._accumulate(batches, factor)
        del whole
        return total

    def _gather(self) -> Tensor:
        """Return a flat copy of all parameters of the model, as for a norm or an export."""
        mine = torch.cat([local(p.detach()).flatten() for p in self.parts.model.parameters()])
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.context.world_size)]
        dist.all_gather(sizes, torch.tensor(mine.numel()))
        largest = int(max(sizes))
        mine = torch.nn.functional.pad(mine, (0, largest - mine.numel()))
        whole = torch.empty(self.context.world_size * largest)
        dist.all_gather_into_tensor(whole, mine)  # fault: full_gather
        return whole


class GatheredLogits(FaultyLoop, name="gathered_logits"):
    """Every rank gathers the logits of all ranks in each step, and keeps them for a final metric."""

    def _prepare(self) -> None:
        self.collected: list[list[Tensor]] = []
        self.parts.wrapped.register_forward_hook(self._collect)

    def _collect(self, model: torch.nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        if model.training and self.started(self.step_number):
            copies = [torch.empty_like(logits) for _ in range(self.context.world_size)]
            dist.all_gather(copies, logits.detach())  # fault: gathered_logits
            self.collected.append(copies)
