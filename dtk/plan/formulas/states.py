"""Model states of one rank: parameters, gradients and optimizer state, as each strategy cuts them. Bytes and elements.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3;
Zhao et al. 2023, "PyTorch FSDP", section 3.2. Padding and imbalance are those of torch's own code.
"""

from collections.abc import Sequence
from math import prod

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.strategies.declared import Shape

MASTER_BYTES = 4
"""Parameters and optimizer state are float32 under every precision."""

WINDOWS = 3
"""Parameters whose states `dtk.parallel.tiers` has in memory: one on its way in, one in use, one on its way out."""


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
