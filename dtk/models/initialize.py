"""Initial values as a pure function of (seed, parameter name): equal under every strategy and world size."""

import hashlib
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from dtk.models.blocks import runs
from dtk.models.declared import Initial, fused_heads
from dtk.parallel.placement import local_piece

BLOCK = 2**20  # Elements per random block: a rank generates fewer than two blocks in excess of its own shard.


def initialize_model(model: nn.Module, seed: int) -> None:
    """Initialize every parameter of a materialised model that has `initial`, one after another; not of a wrapper."""
    for name, parameter in model.named_parameters():
        initialize(parameter, name, model.initial(name), seed, fused_heads(model, name))  # type: ignore[operator]


def initialize(parameter: Tensor, name: str, initial: Initial, seed: int, heads: int | None = None) -> None:
    """Initialize a parameter in place, without communication: of a DTensor, shards or replicas, only this rank's shard.

    `name` is fully qualified, the same under every strategy: it selects the random stream. `heads` are those by which
    its rows are fused (`dtk.models.blocks`); None = rows in their logical order. ValueError for other placements.
    """
    local, piece = local_piece(parameter)
    if initial.kind != "normal":
        local.fill_(1.0 if initial.kind == "ones" else 0.0)
        return
    stream, shape = _Stream(name, initial.std, seed), tuple(parameter.shape)
    if not shape:
        stream.copy(local.view(-1), 0, 1)
        return
    row_size, parts = prod(shape[1:]), runs(piece, shape[0], heads)
    end = max((logical + count for _, logical, count in parts), default=0) * row_size
    # If a rank holds only some columns, whole rows are generated, one block at a time.
    step = max(1, BLOCK // max(row_size, 1))
    for first, logical, count in parts:
        if piece.size[1:] == shape[1:]:
            stream.copy(local[first : first + count].view(-1), logical * row_size, end)
            continue
        for start in range(0, count, step):
            rows = torch.empty(min(step, count - start), *shape[1:])
            stream.copy(rows.view(-1), (logical + start) * row_size, end)
            local[first + start : first + start + len(rows)].copy_(rows[(slice(None), *piece.box[1:])])


class _Stream:
    """A named stream of normal values, generated on the host for every device; caches the last block.

    Philox (Salmon et al. 2011) takes a 128-bit key, so that two blocks never share a stream in practice; torch's CPU
    generator keeps only 32 bits, of which two of 100,000 blocks would most likely have the same.
    """

    def __init__(self, name: str, std: float, seed: int) -> None:
        self.name, self.std, self.seed = name, std, seed
        self.block, self.values = -1, np.empty(0, dtype=np.float32)

    def copy(self, flat: Tensor, first: int, end: int) -> None:
        """Fill `flat` with the elements from `first` on; elements from `end` on will never be requested."""
        last = first + flat.numel()
        for block in range(first // BLOCK, -(-last // BLOCK) if last > first else 0):
            start = block * BLOCK
            if block != self.block:
                key = hashlib.blake2b(f"{self.seed}\0{self.name}\0{block}".encode(), digest_size=16).digest()
                generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8")))
                normal = generator.standard_normal(min(BLOCK, end - start), dtype=np.float32)
                self.block, self.values = block, normal * np.float32(self.std)
            part = torch.from_numpy(self.values[max(first - start, 0) : last - start])
            at = max(start - first, 0)
            flat[at : at + part.numel()].copy_(part)
