"""What a strategy holds of parameters, gradients and optimizer state at each moment of a step: the base.

Is told the moments by whoever walks the step; knows nothing of activations.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from dtk.config.schema import Config
from dtk.plan.formulas.ledger import Buffer, Ledger
from dtk.plan.formulas.shape import ModelShape

ROOT = -1
"""The unit of what belongs to no block."""


@dataclass(slots=True)
class Holding(ABC):
    """Model states of one rank on a ledger. Units are numbered in the order of forward."""

    config: Config
    shape: ModelShape
    world_size: int
    ledger: Ledger
    on_cuda: bool
    rank: int = 0
    """Whose memory it is: the fullest rank's."""
    last: bool = True
    """Whether the micro-batch is the last one: the one whose gradients are reduced."""
    temporary_bytes: int = 0
    """Of the update."""
    host_bytes: int = 0

    @abstractmethod
    def settle(self) -> None:
        """Take what lies there between steps, from the second step on."""

    def piled(self) -> list[Buffer]:
        """Buffers that backward piles up, block after block, and that are freed together later."""
        return []

    def before_forward(self, unit: int) -> None:  # noqa: B027
        """Before a unit's first block; ROOT: before the embeddings."""

    def after_forward(self, unit: int) -> None:  # noqa: B027
        """After a unit's last block; ROOT: after the head."""

    def before_backward(self, unit: int) -> None:  # noqa: B027
        """Before the backward of a unit's last block; ROOT: of the head, when the gradient of the logits exists."""

    def after_backward(self, unit: int) -> None:  # noqa: B027
        """After the backward of a unit's first block; ROOT: of the embeddings."""

    @abstractmethod
    def gradient(self, name: str, gradient: Buffer) -> None:
        """Take over the whole gradient of one parameter, of one micro-batch."""

    @abstractmethod
    def update(self) -> None:
        """Run the optimizer's step and zero_grad."""
