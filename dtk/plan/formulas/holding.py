"""The base: what a strategy holds of parameters, gradients and optimizer state at each moment of a step.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3;
Zhao et al. 2023, "PyTorch FSDP", section 3.2. Padding and imbalance are those of torch's own code.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from dtk.config.schema import AdamWConfig, Config, SGDConfig
from dtk.parallel.mesh import Mesh
from dtk.plan.formulas.shape import ModelShape
from dtk.plan.formulas.tape import Buffer, Ledger
from dtk.strategies.declared import Shape

MASTER_BYTES = 4
"""Parameters and optimizer state are float32 under every precision."""

WINDOWS = 3
"""Parameters whose states `dtk.parallel.tiers` has in memory: one on its way in, one in use, one on its way out."""

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
        """Put the optimizer state on the device, or where it is offloaded to; then updates see it through windows."""
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

    @abstractmethod
    def gradient(self, name: str, gradient: Buffer) -> None:
        """Take over the whole gradient of one parameter, of one micro-batch."""

    @abstractmethod
    def update(self) -> None:
        """Run the optimizer's step and zero_grad."""


def windows(sizes: Sequence[int]) -> int:
    """Return the most that so many consecutive parameters hold, of sizes in the order of the update."""
    return max((sum(sizes[i : i + WINDOWS]) for i in range(len(sizes))), default=0)


def shard_elements(shapes: Sequence[Shape], shards: int) -> int:
    """Elements on the first, and fullest, of the ranks that share parameters: ceil(d0 / shards) rows of each.

    FSDP2 cuts dim 0 as torch.chunk does and pads every rank's part to the first one's (Zhao et al. 2023 pad a
    flattened unit instead, where at most shards - 1 elements are lost).
    """
    return sum(-(-shape[0] // shards) * prod(shape[1:]) for shape in shapes)


def optimizer_bytes(config: AdamWConfig | SGDConfig, elements: int, tensors: int) -> int:
    """Optimizer state of so many elements in so many tensors.

    AdamW (Loshchilov & Hutter 2019) keeps two moments per element and a step counter per tensor; SGD one momentum.
    """
    if isinstance(config, AdamWConfig):
        return 2 * MASTER_BYTES * elements + MASTER_BYTES * tensors
    return MASTER_BYTES * elements if config.momentum else 0


def update_bytes(config: AdamWConfig | SGDConfig, elements: int, largest: int, on_cuda: bool) -> int:
    """Temporaries of the update: none in a fused kernel, one per parameter with foreach, else those of the largest."""
    if isinstance(config, AdamWConfig):
        if config.fused is not False:
            return 0
        return MASTER_BYTES * (elements if on_cuda else 2 * largest)
    if not config.weight_decay and not config.nesterov:
        return 0
    return MASTER_BYTES * (elements if on_cuda else largest)


STAGES = (0, 1, 2, 3)
"""Of ZeRO: 0 shards nothing, 1 the optimizer state, 2 gradients too, 3 weights too."""


@dataclass(frozen=True, slots=True)
class Training:
    """Bytes per parameter."""

    name: str
    weights: int
    """What forward computes with."""
    gradients: int
    master: int
    """Float32 copy of the weights, which the optimizer updates."""
    momentum: int
    variance: int

    @property
    def per_parameter(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer

    @property
    def optimizer(self) -> int:
        """K of the ZeRO paper: what stage 1 shards."""
        return self.master + self.momentum + self.variance

    def rank_bytes(self, parameters: int, stage: int, ranks: int) -> float:
        """Bytes on one of `ranks` ranks, for so many parameters, cut evenly."""
        parts = (self.weights, 3), (self.gradients, 2), (self.optimizer, 1)
        return parameters * sum(size / (ranks if stage >= first else 1) for size, first in parts)


FULL = Training("fp32", 4, 4, 0, 4, 4)
"""Also what dtk keeps under every precision: float32 weights are their own master, copies of 16 bits are not kept."""
_MIXED = Training("fp16 mixed", 2, 2, 4, 4, 4), Training("bf16 mixed", 2, 2, 4, 4, 4)
TRAININGS = (FULL, *_MIXED, Training("pure bf16", 2, 2, 0, 2, 2))
