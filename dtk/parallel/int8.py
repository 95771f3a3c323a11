"""Blockwise int8: 256 elements share a float32 scale, and no block has elements of two parameters."""

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor

from dtk.parallel.compression import BLOCK, BLOCK_BYTES, BLOCKS_AT_ONCE, int8_blocks, rows_at_once


def quantize(blocks: Tensor) -> Tensor:
    """Quantize float32 [blocks, 256] to uint8 [blocks, 260]: int8 elements, then the float32 scale.

    An element changes by at most 1/254 of the largest in its block; a non-finite one makes all of its block non-finite.
    """
    packed = blocks.new_empty(len(blocks), BLOCK_BYTES, dtype=torch.uint8)
    for chunk, into in zip(torch.split(blocks, BLOCKS_AT_ONCE), torch.split(packed, BLOCKS_AT_ONCE), strict=True):
        scale = chunk.abs().amax(1, keepdim=True) / 127
        into[:, :BLOCK].view(torch.int8).copy_((chunk / scale.clamp_min(torch.finfo(torch.float32).tiny)).round_())
        into[:, BLOCK:].view(torch.float32).copy_(scale)
    return packed


def dequantize(packed: Tensor) -> Tensor:
    """Dequantize the result of `quantize` to float32 [blocks, 256]."""
    # Converted separately: a product of two dtypes would make a second copy on the CPU.
    return packed[:, :BLOCK].view(torch.int8).float().mul_(packed[:, BLOCK:].contiguous().view(torch.float32))


def leave_rounding(blocks: Tensor, packed: Tensor) -> None:
    """Subtract the quantized values from the blocks in place, which leaves the rounding errors."""
    for some, sent in zip(torch.split(blocks, BLOCKS_AT_ONCE), torch.split(packed, BLOCKS_AT_ONCE), strict=True):
        some -= dequantize(sent)


def total(packed: Tensor, rows: int) -> Tensor:
    """Return float32 [blocks / rows, 256], the sum over `rows` equal parts of quantized blocks."""
    count = len(packed) // rows
    parts = torch.split(packed, rows_at_once(count) * count)
    return reduce(Tensor.add_, (dequantize(some).view(-1, count, BLOCK).sum(0) for some in parts))


class Blocks:
    """Layout of parameters, which are consecutive in a flat tensor, in blocks that no two parameters share.

    `sizes` are the elements of each parameter; the blocks are divided into equal `parts`.
    """

    def __init__(self, sizes: Sequence[int], parts: int = 1) -> None:
        self.sizes = list(sizes)
        self.count = int8_blocks(sizes, parts)
        self._starts = [BLOCK * start for start in accumulate((-(-size // BLOCK) for size in sizes), initial=0)]

    def split(self, flat: Tensor) -> Tensor:
        """Split [rows, elements] into float32 [rows * blocks, 256], padded with zeros."""
        blocks = torch.zeros(len(flat), self.count * BLOCK, device=flat.device)
        torch._foreach_copy_(self.inside(blocks), list(torch.split(flat, self.sizes, 1)))
        return blocks.view(-1, BLOCK)

    def join(self, blocks: Tensor, flat: Tensor) -> None:
        """Write the elements of [rows * blocks, 256] into [rows, elements]."""
        torch._foreach_copy_(list(torch.split(flat, self.sizes, 1)), self.inside(blocks.view(len(flat), -1)))

    def unpack(self, packed: Tensor, flat: Tensor) -> None:
        """Dequantize the blocks of `split` into [rows, elements], a part of the rows at a time."""
        rows = rows_at_once(self.count)
        for chunk, into in zip(torch.split(packed, rows * self.count), torch.split(flat, rows), strict=True):
            self.join(dequantize(chunk), into)

    def inside(self, blocks: Tensor) -> list[Tensor]:
        """Return the elements of each parameter, views of [..., blocks * 256]."""
        return [blocks[..., start : start + size] for start, size in zip(self._starts, self.sizes, strict=False)]
