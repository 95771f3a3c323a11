"""The collectives of a strategy per optimizer step, computed from the shapes of the parameters alone."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dtk.parallel.compression import BLOCK_BYTES, int8_blocks
from dtk.parallel.number_formats import PrecisionConfig

Shape = tuple[int, ...]  # Shape of one parameter; dim 0 is the one that is sharded.

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that a strategy issues per optimizer step, from the second step on.

    `size_bytes` is the sum over the `count` calls of the full (largest) buffer on one rank.
    """

    op: str
    group: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Shapes of a model's parameters."""

    parameters: Sequence[Shape]
    """Shapes of all parameters, in definition order."""
    blocks: Sequence[Sequence[Shape]]
    """Shapes of each block."""
    rest: Sequence[Shape]
    """Shapes of parameters outside all blocks: embeddings, final norm, head."""
    experts: Sequence[Sequence[Shape]] = ()
    """Shapes of an `ep` rank's experts in each block with experts: separate units, not contained in the others."""
    apart: Sequence[Sequence[Shape]] = ()
    """Shapes of further units besides the blocks, which stay gathered from forward to backward as the rest does."""

    def units(self, blocks_per_unit: int) -> list[list[Shape]]:
        """Return the consecutive blocks that are gathered together; empty if the whole model (0) is one unit."""
        if not blocks_per_unit:
            return []
        starts = range(0, len(self.blocks), blocks_per_unit)
        return [[shape for block in self.blocks[i : i + blocks_per_unit] for shape in block] for i in starts]

    def root(self, blocks_per_unit: int) -> Sequence[Shape]:
        """Return the shapes of the parameters outside the units of blocks."""
        return self.rest if blocks_per_unit else self.parameters


def reduced_item_bytes(precision: PrecisionConfig) -> int:
    """Return the bytes per element of a gradient as FSDP2 reduces it."""
    return ITEM_BYTES[precision.reduce_dtype] if ITEM_BYTES[precision.compute_dtype] != 4 else 4


def shard_elements(shapes: Sequence[Shape], shards: int) -> int:
    """Return the elements on the first rank, which has the most: ceil(d0 / shards) rows of each parameter.

    FSDP2 splits dim 0 as torch.chunk does, and pads every rank's shard to the size of the first to gather and reduce it
    (Zhao et al. 2023 pad a flattened unit instead, where at most shards - 1 elements are lost).
    """
    return _shard_elements(tuple(shapes), shards)


@functools.lru_cache(maxsize=4096)  # Most blocks are equal, and so are most layouts of a search.
def _shard_elements(shapes: tuple[Shape, ...], shards: int) -> int:
    return sum(-(-shape[0] // shards) * prod(shape[1:]) for shape in shapes)


def wire_bytes(shapes: Sequence[Shape], shards: int, item_bytes: int, quantized: bool) -> int:
    """Return the bytes of FSDP2's full buffer for a unit: whole elements, or int8 blocks with their scales."""
    if not quantized:
        return shards * shard_elements(shapes, shards) * item_bytes
    return shards * BLOCK_BYTES * shard_blocks(shapes, shards)


def shard_blocks(shapes: Sequence[Shape], shards: int) -> int:
    """Return the number of int8 blocks in which a rank's shard of a unit is sent."""
    return int8_blocks((shard_elements([shape], shards) for shape in shapes), 1)
