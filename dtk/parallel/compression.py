"""Sizes of compressed gradients on the wire, from the number of elements of each parameter. Torch-free, for plans.
Compressors work parameter by parameter, as DDP's buckets change after the first step.
"""

import math
from collections.abc import Iterable

BLOCK = 256  # Elements that share a scale. The error of an element is at most 1/254 of the largest in its block.
BLOCK_BYTES = BLOCK + 4  # Bytes of a block on the wire: one byte per element and a float32 scale.

BLOCKS_AT_ONCE = 2**16
"""Blocks that are quantized or dequantized at once: 64 MiB of float32, so that large units need no second copy."""
MIN_COMPRESSION_RATE = 2  # PowerSGD's factors are smaller by more than this, as in torch's own hook.


def rows_at_once(blocks: int) -> int:
    """Return how many rows of this many blocks are dequantized at once."""
    return max(1, BLOCKS_AT_ONCE // max(1, blocks))


def rounding_bytes(blocks: int, ranks: int, gathers: bool) -> int:
    """Return the peak bytes that an int8 gather or reduction holds besides its input and output.

    `gathers` is True for an all_gather of shards; False for a reduction, in which a rank sums the parts it receives.
    """
    wide, own, all_of_them = 4 * BLOCK, blocks if gathers else ranks * blocks, ranks * blocks
    rounded = own * (wide + BLOCK_BYTES) + min(own, BLOCKS_AT_ONCE) * (wide + 8)
    together = min(ranks, rows_at_once(blocks))
    sums = 0 if gathers else blocks * wide * (1 if together == ranks else 2)
    return max(rounded, (own + all_of_them) * BLOCK_BYTES + together * blocks * (wide + 4) + sums)


def kept(elements: int, ratio: float) -> int:
    """Return the number of elements of a parameter that TopK sends, at least one."""
    return max(1, math.ceil(elements * ratio))


def int8_blocks(sizes: Iterable[int], ranks: int) -> int:
    """Return the number of blocks of a bucket with these parameters, padded so that each rank averages equally many."""
    return -(-sum(-(-size // BLOCK) for size in sizes) // ranks) * ranks


def topk_bytes(sizes: Iterable[int], ratio: float, ranks: int) -> int:
    """Return the bytes of all ranks' TopK elements of a bucket: a float32 value and an int32 index each."""
    return 8 * ranks * sum(kept(size, ratio) for size in sizes)


def factor_rank(rows: int, columns: int, rank: int) -> int:
    """Return the rank of PowerSGD's factors of a matrix; 0 if the matrix is sent whole."""
    rank = min(rows, columns, rank)
    return rank if (rows + columns) * rank * MIN_COMPRESSION_RATE < rows * columns else 0
