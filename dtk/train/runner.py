"""Forward and backward over the micro-batches of one optimizer step through a whole model. A runner, this one or that
of `dtk.train.pipeline`, is given micro-batches and returns sums.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dtk.config.schema import MoEConfig
from dtk.data.dataset import Batch
from dtk.dimensions.cp import Part
from dtk.parallel.context import Context
from dtk.parallel.control import sum_over_ranks
from dtk.parallel.regions import region
from dtk.strategies.base import Strategy
from dtk.strategies.declared import Collective
from dtk.tasks.base import Task, add_figures, loss_of, no_figures
from dtk.tasks.cross_entropy import auxiliary_loss


@dataclass(slots=True)
class ExpertLoads:
    """How the tokens of a step were divided over the experts of each block."""

    context: Context
    model: MoEConfig
    counts: Tensor = field(init=False)
    """int64 [blocks, 2, experts]: tokens for which each expert was chosen, and those that it took."""

    def __post_init__(self) -> None:
        shape = self.model.layers, 2, self.model.experts
        self.counts = torch.zeros(shape, dtype=torch.int64, device=self.context.device)

    def add(self, output: Any, first_block: int = 0) -> None:
        """Add those of a micro-batch in a model, or in a stage that begins with this block."""
        if (loads := getattr(output, "loads", None)) is not None:
            first = max(first_block, self.model.dense_layers)
            self.counts[first : first + len(loads)] += loads

    def figures(self) -> dict[str, float]:
        """Return those of the last step over all ranks, each of the block where it is worst.

        expert_load: the busiest expert's tokens over the mean; expert_rank_load: the busiest `ep` rank's over the mean,
        which is how much longer the experts take than they would evenly; expert_dropped: share of the choices that met
        a full expert.
        """
        counts = sum_over_ranks(self.context, self.counts.cpu())[self.model.dense_layers :]
        chosen, taken = counts.double().unbind(1)
        of_ranks = taken.view(len(taken), self.context.mesh.ep, -1).sum(2)
        loads = [(each.amax(1) / each.mean(1).clamp(min=1e-9)).max() for each in (taken, of_ranks)]
        dropped = (1 - taken.sum(1) / chosen.sum(1)).max()
        names = ("expert_load", "expert_rank_load", "expert_dropped")
        return {name: float(value) for name, value in zip(names, (*loads, dropped), strict=True)}


@dataclass(frozen=True, slots=True)
class Accumulate:
    """One micro-batch after the other through the whole model."""

    strategy: Strategy
    model: nn.Module
    wrapped: nn.Module
    """What forward is called on in training."""
    task: Task
    """What the loss and the metrics are."""
    part: Part | None = None
    """Which tokens of each sequence this rank has; None = all."""
    declare: Callable[[int], list[Collective]] | None = None
    """Number of micro-batches -> what forward and backward communicate themselves."""
    loads: ExpertLoads | None = None
    """Of a mixture of experts."""

    def run(self, batches: Sequence[Batch], factor: float, seed: Callable[[int], None]) -> Tensor:
        """Forward and backward of each micro-batch; gradients are communicated in the last one.

        Args:
            batches: of this rank's part of the global batch, one per micro-batch.
            factor: what each summed loss is multiplied by before its backward.
            seed: sets torch's random state to that of a micro-batch, given by its number.

        Returns:
            the summed loss over the micro-batches, detached and without the factor.
        """
        strategy, device = self.strategy, self.strategy.context.device
        total = torch.zeros((), device=device)
        if self.loads is not None:
            self.loads.counts.zero_()
        for i, host_batch in enumerate(batches):
            own, where = own_part(self.part, host_batch, device)
            batch = own.to(device)
            seed(i)
            with strategy.accumulate(self.wrapped, last=i == len(batches) - 1):
                with region("forward"), strategy.autocast():
                    output = self.task.forward(partial(self.wrapped, **where), batch.inputs)
                    loss = loss_of(self.task, output, batch.targets)
                    more = auxiliary_loss(output)
                    if self.loads is not None:
                        self.loads.add(output)
                    del output  # Logits are large, and not all losses need them in backward.
                with region("backward"):
                    strategy.backward((loss if more is None else loss + more) * factor)
            total += loss.detach()
        return total

    def evaluate(self, batches: Iterable[Batch], collected: Mapping[str, Any] | None = None) -> Tensor:
        """Return what `dtk.tasks.base.add_figures` adds up over these micro-batches, on the device."""
        device = self.strategy.context.device
        sums = no_figures(self.task, device)
        for host_batch in batches:
            own, where = own_part(self.part, host_batch, device)
            batch = own.to(device)
            with self.strategy.autocast():
                call = partial(self.model, **where)
                output, count = self.task.forward(call, batch.inputs), self.task.count(own.targets)
                add_figures(sums, self.task, output, batch, count, collected)
        self.strategy.release(self.model)
        return sums

    def collectives(self, accumulation_steps: int, clips: bool) -> list[Collective]:
        """Return what this rank issues per optimizer step, from the second step on; `clips` gradients by their norm."""
        inside = self.declare(accumulation_steps) if self.declare else []
        return [*self.strategy.collectives(self.model, accumulation_steps, clips), *inside]

    def figures(self) -> dict[str, float]:
        """Return how the experts were used in the last step, for the metrics record; every rank calls it."""
        return {} if self.loads is None else self.loads.figures()


def own_part(part: Part | None, batch: Batch, device: torch.device) -> tuple[Batch, dict[str, Tensor]]:
    """Return the tokens that this rank has of a micro-batch, and what forward must know of them, on the device."""
    if part is None:
        return batch, {}
    return part.own(batch), {"positions": part.positions(batch).to(device, non_blocking=True)}
