"""Forward and backward over the micro-batches of one optimizer step through a whole model. This runner and the one in
`dtk.train.pipeline` accept micro-batches and return sums.
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
from dtk.sharding.base import Strategy
from dtk.sharding.declared import Collective
from dtk.tasks.base import Task, add_figures, loss_of, no_figures
from dtk.tasks.cross_entropy import auxiliary_loss

_DIGITS = 3  # Of each rank's load in a record: the records of a job with 1,000 ranks stay below 10 kB.


@dataclass(slots=True)
class ExpertLoads:
    """The distribution of a step's tokens over the experts of each block."""

    context: Context
    model: MoEConfig
    counts: Tensor = field(init=False)
    """int64 [blocks, 2, experts]: tokens routed to each expert, and tokens that it accepted."""

    def __post_init__(self) -> None:
        shape = self.model.layers, 2, self.model.experts
        self.counts = torch.zeros(shape, dtype=torch.int64, device=self.context.device)

    def add(self, output: Any, first_block: int = 0) -> None:
        """Add the loads of a micro-batch, from the output of a model or of the stage that begins with this block."""
        if (loads := getattr(output, "loads", None)) is not None:
            first = max(first_block, self.model.dense_layers)
            self.counts[first : first + len(loads)] += loads

    def figures(self) -> dict[str, float | list[float]]:
        """Return the load figures of the last step over all ranks.

        expert_load: the busiest expert's tokens over the mean, of the worst block; expert_rank_load: the busiest `ep`
        rank's tokens over the mean, averaged over the blocks, as each waits for its own: the slowdown of the experts
        against a balanced load; expert_load_per_rank: the tokens of each rank's experts in all its blocks over the mean
        of its `ep` group; expert_dropped: share of the choices whose expert was full, of the worst block.
        """
        mesh, own, dense = self.context.mesh, self.counts.cpu(), self.model.dense_layers
        of_rank = torch.zeros(mesh.world_size, dtype=torch.int64)
        of_rank[mesh.group("ep", self.context.rank)] = own[:, 1].reshape(len(own), mesh.ep, -1).sum((0, 2))
        sums = sum_over_ranks(self.context, torch.cat([own.flatten(), of_rank]))
        chosen, taken = sums[: own.numel()].view_as(own)[dense:].double().unbind(1)
        of_place = taken.view(len(taken), mesh.ep, -1).sum(2)
        over_mean = [each.amax(1) / each.mean(1).clamp(min=1e-9) for each in (taken, of_place)]
        loads = over_mean[0].max(), over_mean[1].mean()
        dropped = (1 - taken.sum(1) / chosen.sum(1)).max()
        names = ("expert_load", "expert_rank_load", "expert_dropped")
        figures: dict[str, Any] = {name: float(value) for name, value in zip(names, (*loads, dropped), strict=True)}
        if mesh.ep > 1:
            of_rank = sums[own.numel() :].double()
            for group in mesh.groups("ep"):
                of_rank[group] /= of_rank[group].mean().clamp(min=1e-9)
            figures["expert_load_per_rank"] = [round(load, _DIGITS) for load in of_rank.tolist()]
        return figures


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of the model between two ends of a pipeline; without a pipeline the whole model."""

    model: nn.Module
    wrapped: nn.Module
    """The module whose forward is called in training."""
    declare: Callable[[int], list[Collective]]
    """Returns the collectives that forward and backward issue themselves, given the number of micro-batches."""
    first_block: int = 0


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Runs one micro-batch after the other through the whole model."""

    strategy: Strategy
    whole: Stage
    task: Task
    """Defines the loss and the metrics."""
    part: Part | None = None
    """The tokens of each sequence that this rank has; None = all."""
    loads: ExpertLoads | None = None
    """Expert loads of a mixture of experts; None for other models."""

    def run(self, batches: Sequence[Batch], factor: float, seed: Callable[[int], None]) -> Tensor:
        """Return the summed loss of the micro-batches, after forward and backward; the last one communicates gradients.

        `factor` multiplies each summed loss before its backward, but not the detached loss returned; `seed` sets the
        random state for a micro-batch, given its index.
        """
        strategy, device = self.strategy, self.strategy.context.device
        total = torch.zeros((), device=device)
        if self.loads is not None:
            self.loads.counts.zero_()
        for i, host_batch in enumerate(batches):
            own, where = own_part(self.part, host_batch, device)
            batch = own.to(device)
            seed(i)
            with strategy.accumulate(self.whole.wrapped, last=i == len(batches) - 1):
                with region("forward"), strategy.autocast():
                    output = self.task.forward(partial(self.whole.wrapped, **where), batch.inputs)
                    loss = loss_of(self.task, output, batch.targets)
                    more = auxiliary_loss(output)
                    if self.loads is not None:
                        self.loads.add(output)
                    del output  # Logits are large, and not every loss needs them in backward.
                with region("backward"):
                    strategy.backward((loss if more is None else loss + more) * factor)
            total += loss.detach()
        return total

    def evaluate(self, batches: Iterable[Batch], collected: Mapping[str, Any] | None = None) -> Tensor:
        """Return the sums of `dtk.tasks.base.add_figures` over these micro-batches, on the device."""
        device = self.strategy.context.device
        sums = no_figures(self.task, device)
        for host_batch in batches:
            own, where = own_part(self.part, host_batch, device)
            batch = own.to(device)
            with self.strategy.autocast():
                call = partial(self.whole.model, **where)
                output, count = self.task.forward(call, batch.inputs), self.task.count(own.targets)
                add_figures(sums, self.task, output, batch, count, collected)
        self.strategy.release(self.whole.model)
        return sums

    def collectives(self, accumulation_steps: int, clips: bool) -> list[Collective]:
        """Return this rank's collectives per optimizer step, from the second on; `clips` adds those of clipping."""
        inside = self.whole.declare(accumulation_steps)
        return [*self.strategy.collectives(self.whole.model, accumulation_steps, clips), *inside]

    def figures(self) -> dict[str, float | list[float]]:
        """Return the expert loads of the last step for the metrics record; every rank must call it."""
        return {} if self.loads is None else self.loads.figures()


def own_part(part: Part | None, batch: Batch, device: torch.device) -> tuple[Batch, dict[str, Tensor]]:
    """Return this rank's tokens of a micro-batch and the keywords that forward needs for them, on the device."""
    if part is None:
        return batch, {}
    return part.own(batch), {"positions": part.positions(batch).to(device, non_blocking=True)}
