"""Sizes of compressed gradients on the wire, from the elements of each parameter. Torch-free: a plan counts with them.
Compressors work parameter by parameter, as DDP's buckets change after the first step.
"""

import math
from collections.abc import Iterable

BLOCK = 256
"""Elements that share a scale. Relative error of an element: at most 1 / 254 of the largest in its block."""
BLOCK_BYTES = BLOCK + 4
"""Of a block on the wire: one byte per element and a float32 scale."""


def kept(elements: int, ratio: float) -> int:
    """Return how many elements of a parameter TopK sends: at least one."""
    return max(1, math.ceil(elements * ratio))


def int8_blocks(sizes: Iterable[int], ranks: int) -> int:
    """Blocks of a bucket with these parameters, filled up so that each rank averages as many."""
    return -(-sum(-(-size // BLOCK) for size in sizes) // ranks) * ranks


def topk_bytes(sizes: Iterable[int], ratio: float, ranks: int) -> int:
    """Bytes of all ranks' largest elements of a bucket: a float32 value and an int32 index each."""
    return 8 * ranks * sum(kept(size, ratio) for size in sizes)
