"""Faults of a layout: parameters gathered in the wrong place, or one stage, tensor-parallel rank or expert deviates."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.models.moe import MixtureMLP
from dtk.parallel import collectives
from dtk.sharding.base import local
from dtk.train.loop import StepResult

ROWS, WIDTH = 4, 64  # Shape of the rows that the faulty exchange sends to each rank.


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


class PipelineMismatch(FaultyLoop, name="pipeline_mismatch"):
    """One stage assumes a smaller batch and runs one micro-batch fewer than the others."""

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        place, faulty = (self.context.mesh.coordinate(rank) for rank in (self.context.rank, int(self.fault.rank)))
        # Ranks along tp and cp work on the same micro-batches of a stage.
        if self.step_number == int(self.fault.step) and all(place[name] == faulty[name] for name in ("pp", "dp")):
            batches = batches[:-1]
        return super()._accumulate(batches, factor)  # fault: pipeline_mismatch


class SplitsDiffer(FaultyLoop, name="all_to_all_splits"):
    """All ranks exchange rows, and one expects fewer of them than its peers send."""

    def _log(self, result: StepResult) -> None:
        if self.state.step == self.fault.step:
            ranks = self.context.world_size
            sent, expected = [ROWS] * ranks, [ROWS] * ranks
            if self.context.rank == self.fault.rank:
                expected = [ROWS // 2] * ranks
                expected[self.context.rank] = ROWS
            rows, received = torch.ones(sum(sent), WIDTH), torch.empty(sum(expected), WIDTH)
            dist.all_to_all_single(received, rows, expected, sent)  # fault: all_to_all_splits
        super()._log(result)


class OtherInputs(FaultyLoop, name="tp_divergence"):
    """One rank of a tensor-parallel group reads different samples, as with a data loader that counts all ranks."""

    def _batches(self, step: int) -> list[Batch]:
        batches = super()._batches(step)
        if self.context.rank == self.fault.rank and self.started(step + 1):
            return [
                Batch(batch.inputs.roll(1, 1), batch.targets.roll(1, 1)) for batch in batches
            ]  # fault: tp_divergence
        return batches


class FavouredExpert(FaultyLoop, name="expert_imbalance"):
    """Every router has collapsed and prefers the same experts for all tokens."""

    def _prepare(self) -> None:
        for module in self.parts.model.modules():
            if isinstance(module, MixtureMLP):
                module.router.register_forward_hook(self._tilted)

    def _tilted(self, router: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        if not self.started(self.step_number):
            return logits
        preferred = torch.arange(logits.shape[-1], 0, -1, device=logits.device)
        return logits + 10.0 * preferred  # fault: expert_imbalance


class SlowLinks(FaultyLoop, name="tp_across_nodes"):
    """Tensor-parallel ranks on different nodes, simulated by repeating each collective of the group."""

    def _prepare(self) -> None:
        for name in ("all_gather_single", "reduce_scatter_single"):
            setattr(collectives, name, functools.partial(self._slowly, getattr(collectives, name)))

    def _slowly(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        for _ in range(int(self.fault.times)):
            result = call(*arguments, **named)  # fault: tp_across_nodes
        return result
