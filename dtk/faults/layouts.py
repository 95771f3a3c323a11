"""Faults of model parallelism in which one stage, tensor-parallel rank or expert deviates from the others."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.models.moe import MixtureMLP
from dtk.parallel import collectives
from dtk.train.loop import StepResult

ROWS, WIDTH = 4, 64  # Shape of the rows that the faulty exchange sends to each rank.


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
