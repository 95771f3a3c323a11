"""What a strategy holds of parameters, gradients and optimizer state at each moment of a step: the base."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from dtk.config.schema import Config
from dtk.parallel.mesh import Mesh
from dtk.plan.formulas.ledger import Buffer, Ledger
from dtk.plan.formulas.shape import ModelShape
from dtk.plan.formulas.states import WINDOWS, optimizer_bytes, update_bytes, windows
from dtk.strategies.declared import Shape

ROOT = -1
"""The unit of what belongs to no block."""


@dataclass(slots=True)
class Holding(ABC):
    """Model states of one rank on a ledger. Units are numbered in the order of forward."""

    config: Config
    shape: ModelShape
    mesh: Mesh
    """Over which states are kept."""
    ledger: Ledger
    on_cuda: bool
    rank: int = 0
    """Whose memory it is: the fullest rank's."""
    last: bool = True
    """Whether the micro-batch is the last one: the one whose gradients are reduced."""
    temporary_bytes: int = 0
    """Of the update."""
    host_bytes: int = 0
    file_bytes: int = 0
    """Of states in a file."""
    paged_bytes: int = 0
    """Moved to and from the place of offloaded states in a step."""

    def place_states(self, elements: int, tensors: int, part: Callable[[Shape], int]) -> None:
        """Put the optimizer state on the device, or where it is offloaded to; then updates see it through windows.

        Args:
            elements: that this rank updates.
            tensors: in which they are.
            part: elements of this rank's part of a parameter.
        """
        optimizer, strategy = self.config.optimizer, self.config.strategy
        some = self.shape.before + self.shape.block * min(WINDOWS, self.shape.layers) + self.shape.after
        sizes = [part(shape) for matrices in (True, False) for _, shape in some if (len(shape) > 1) == matrices]
        if strategy.traits.deals_out_parameters:
            sizes.sort(reverse=True)  # Of which a rank may own the largest ones.
        moved, counters = optimizer_bytes(optimizer, elements, 0), optimizer_bytes(optimizer, 0, tensors)
        largest = min(max(sizes), elements)
        if not strategy.pages("cuda" if self.on_cuda else "cpu"):
            self.ledger.change("optimizer states", moved + counters)
            self.temporary_bytes = update_bytes(optimizer, elements, largest, self.on_cuda)
            return
        self.ledger.change("optimizer states", counters)
        self.paged_bytes += 2 * moved
        if strategy.offload_to == "nvme":
            self.file_bytes += moved
        else:
            self.host_bytes += moved
        seen = optimizer_bytes(optimizer, min(windows(sizes), elements), 0)
        self.temporary_bytes = seen + update_bytes(optimizer, largest, largest, self.on_cuda)
        if optimizer.in_backward:
            self.ledger.change("temporaries", seen)

    @abstractmethod
    def settle(self) -> None:
        """Take what lies there between steps, from the second step on."""

    def unit(self, block: int, experts: bool = False) -> int:
        """Return the unit of a block, or of its experts, where these are kept by themselves."""
        return ROOT

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

    def reduce(self) -> None:  # noqa: B027
        """After the last half of a backward: reduce all gradients."""

    @abstractmethod
    def gradient(self, name: str, gradient: Buffer) -> None:
        """Take over the whole gradient of one parameter, of one micro-batch."""

    @abstractmethod
    def update(self) -> None:
        """Run the optimizer's step and zero_grad."""
