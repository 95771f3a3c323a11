"""parity.json: facts that show whether two runs started equally, whatever their strategy and world size. The hash of
the weights is a sum modulo 2^64 over elements mixed with name and position, to which each rank adds its part.
"""

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics.contract.artifacts import SCHEMA_VERSION
from diagnostics.contract.files import table_beside
from dtk.models.blocks import runs
from dtk.models.declared import fused_heads
from dtk.parallel.context import Context
from dtk.parallel.control import sum_over_ranks
from dtk.parallel.placement import local_piece, replica
from dtk.record.guard import guarded
from dtk.sharding.base import Strategy

DEFINITIONS: dict[str, str] = table_beside(__file__)  # Key of parity.json -> its meaning.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes per element -> integer dtype for its bits."""
_MASK = (1 << 64) - 1  # Hashes are sums modulo 2^64.
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea & Flood 2014)."""
_CPU_BLOCK, _DEVICE_BLOCK = 2**15, 2**22
"""Chosen: elements mixed at once: what fits the cache of a CPU, and what hides the launch overhead on a device."""


def parity(model: nn.Module, context: Context, strategy: Strategy, compute: str) -> dict[str, Any]:
    """Return the content of parity.json; every rank must call it. `compute` is the dtype of the matrix products."""
    # The second number counts ranks without a sum: there is then no hash, but every rank took part in the collective.
    values = torch.tensor([0, 1], dtype=torch.int64)
    with guarded("parity"):
        group = next((list(ranks) for ranks in strategy.stored_alike if context.rank in ranks), [context.rank])
        values[0], values[1] = _signed(weights_sum(model, group.index(context.rank), len(group), strategy.stored)), 0
    sum_over_ranks(context, values)
    total, failed = (int(value) for value in values)
    about = {"schema_version": SCHEMA_VERSION, "definitions": DEFINITIONS}
    about |= {"initial_weights_hash": None if failed else f"{total & _MASK:016x}"}
    outline = strategy.outline(model)
    dtypes = {str(outline[name].dtype).removeprefix("torch.") for name, _ in model.named_parameters()}
    about |= {"master_dtype": "+".join(sorted(dtypes))}
    return {**about, "compute_dtype": compute, "reduce_dtype": strategy.reduce_dtype}


def weights_sum(
    model: nn.Module, part: int = 0, parts: int = 1, stored: Callable[[nn.Parameter], Tensor] = Tensor.detach
) -> int:
    """Return this rank's part of the sum, in [0, 2^64); ValueError if shards are not along rows or columns.

    `part` is the index of the piece of this rank's tensors to sum, among `parts` equal ones: replicas divide the work.
    `stored` returns this rank's part of a parameter, and every rank calls it.
    """
    total = 0
    with torch.no_grad():
        for name, each in model.named_parameters():
            parameter = stored(each)
            local, piece = local_piece(parameter)
            if piece.size[2:] != tuple(parameter.shape[2:]):
                raise ValueError(f"{name} is cut into {list(piece.size)} of {list(parameter.shape)}")
            index, count = replica(each)  # What `stored` returns lacks the mark of a copy.
            mine, shares = part * count + index, parts * count
            row_size = parameter.numel() // max(parameter.shape[0], 1) if parameter.dim() else 1
            inner = parameter.numel() // max(prod(parameter.shape[:2]), 1)
            width = prod(piece.size[1:])
            heads = fused_heads(model, name)
            parts_of = runs(piece, parameter.shape[0], heads) if parameter.dim() else [(0, 0, 1)]
            for row, logical, rows in parts_of:
                flat = (local[row : row + rows] if parameter.dim() else local).reshape(-1)
                begin, end = flat.numel() * mine // shares, flat.numel() * (mine + 1) // shares
                first = logical * row_size + sum(piece.offset[1:2]) * inner
                total += _sum(flat[begin:end], begin, first, width, row_size, name)
    return total & _MASK


def _sum(flat: Tensor, begin: int, first: int, width: int, row_size: int, name: str) -> int:
    """Return the sum of the mixed elements of a piece from element `begin` on; other arguments as in the caller."""
    if not flat.numel():
        return 0
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    bits = bits_of(flat)
    scale = bits.numel() // flat.numel()
    begin, first, width, row_size = (number * scale for number in (begin, first, width, row_size))
    size = _CPU_BLOCK if flat.device.type == "cpu" else _DEVICE_BLOCK
    ramp = torch.arange(min(size, bits.numel()), dtype=torch.int64, device=flat.device)
    steps = ramp * _signed(_STEP)
    sums = []
    for start in range(0, bits.numel(), size):
        block = bits[start : start + size]
        mixed = steps[: block.numel()] + _signed(seed + (first + begin + start) * _STEP)
        if width != row_size:  # Each row before an element skips the columns that the piece lacks.
            rows = (ramp[: block.numel()] + (begin + start)).div_(width, rounding_mode="floor")
            mixed += rows.mul_(_signed((row_size - width) * _STEP))
        mixed.bitwise_xor_(block.to(torch.int64)).mul_(_signed(_FIRST))
        mixed.bitwise_xor_(mixed >> 32).mul_(_signed(_SECOND))
        sums.append(mixed.bitwise_xor_(mixed >> 29).sum())
    return int(torch.stack(sums).sum())


def bits_of(tensor: Tensor) -> Tensor:
    """Return a tensor's bits as a flat integer tensor of the same element size; complex numbers yield two each."""
    flat = tensor.reshape(-1)
    whole = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return whole.view(_BITS[whole.element_size()])


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
