"""Forward and backward over the micro-batches of one optimizer step: what the loop calls, whatever the layout.

A runner is told micro-batches and returns sums; it knows the strategy's verbs, and neither optimizer nor logging.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dtk.data.dataset import IGNORE, Batch
from dtk.dimensions.cp import Part
from dtk.parallel.regions import region
from dtk.strategies.base import Strategy
from dtk.strategies.declared import Collective
from dtk.train.loss import Vocabulary, correct_predictions, logits_of, loss_sum, to_device


class Runner(Protocol):
    """Runs the micro-batches of a step on this rank."""

    def run(self, batches: Sequence[Batch], factor: float, seed: Callable[[int], None]) -> Tensor:
        """Compute the gradients of a step.

        Args:
            batches: of this rank's part of the global batch, one per micro-batch.
            factor: what each summed loss is multiplied by before its backward.
            seed: sets torch's random state to that of a micro-batch, given by its number.

        Returns:
            the summed loss over the micro-batches, detached and without the factor.
        """

    def evaluate(self, batches: Iterable[Batch]) -> Tensor:
        """Return [summed loss, valid targets, right predictions] of these micro-batches, float64 on the device."""

    def collectives(self, accumulation_steps: int, clips: bool) -> list[Collective]:
        """Return what this rank issues per optimizer step, from the second step on.

        Args:
            accumulation_steps: micro-batches of this rank.
            clips: whether gradients are clipped by their global norm.
        """

    def figures(self) -> dict[str, float]:
        """Return what it measured of the last step, for the metrics record; every rank calls it."""


@dataclass(frozen=True, slots=True)
class Accumulate:
    """One micro-batch after the other through the whole model."""

    strategy: Strategy
    model: nn.Module
    wrapped: nn.Module
    """What forward is called on in training."""
    vocabulary: Vocabulary | None = None
    """How the logits' vocabulary is divided over ranks; None = it is not."""
    part: Part | None = None
    """Which tokens of each sequence this rank has; None = all."""
    declare: Callable[[int], list[Collective]] | None = None
    """Number of micro-batches -> what forward and backward communicate themselves."""

    def run(self, batches: Sequence[Batch], factor: float, seed: Callable[[int], None]) -> Tensor:
        """Forward and backward of each; gradients are communicated in the last one."""
        strategy, device = self.strategy, self.strategy.context.device
        total = torch.zeros((), device=device)
        for i, host_batch in enumerate(batches):
            batch, where = own_part(self.part, host_batch, device)
            seed(i)
            with strategy.accumulate(self.wrapped, last=i == len(batches) - 1):
                with region("forward"), strategy.autocast():
                    loss = loss_sum(self.wrapped(batch.inputs, **where), batch.targets, self.vocabulary)
                with region("backward"):
                    (loss * factor).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def evaluate(self, batches: Iterable[Batch]) -> Tensor:
        """Forward of each."""
        device = self.strategy.context.device
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for host_batch in batches:
            batch, where = own_part(self.part, host_batch, device)
            with self.strategy.autocast():
                add_figures(sums, logits_of(self.model(batch.inputs, **where)), batch.targets, self.vocabulary)
        self.strategy.release(self.model)
        return sums

    def collectives(self, accumulation_steps: int, clips: bool) -> list[Collective]:
        """Return those of the strategy, and those inside the model."""
        inside = self.declare(accumulation_steps) if self.declare else []
        return [*self.strategy.collectives(self.model, accumulation_steps, clips), *inside]

    def figures(self) -> dict[str, float]:
        """Return nothing: there is no waiting between micro-batches."""
        return {}


def own_part(part: Part | None, batch: Batch, device: torch.device) -> tuple[Batch, dict[str, Tensor]]:
    """Return the tokens that this rank has of a micro-batch, on its device, and what forward must know of them."""
    if part is None:
        return to_device(batch, device), {}
    return to_device(part.own(batch), device), {"positions": part.positions(batch).to(device, non_blocking=True)}


def add_figures(sums: Tensor, logits: Tensor, targets: Tensor, vocabulary: Vocabulary | None = None) -> None:
    """Add what `Runner.evaluate` returns of one micro-batch."""
    sums[0] += loss_sum(logits, targets, vocabulary)
    sums[1] += (targets != IGNORE).sum()
    sums[2] += correct_predictions(logits, targets, vocabulary)
