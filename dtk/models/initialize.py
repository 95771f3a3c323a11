"""Initial values as a pure function of (seed, parameter name): the same under every strategy and world size.

Fills memory that is there already; knows neither the model's architecture nor who sharded it. A custom model
without `initial` cannot be filled here: it is built on the CPU under `torch.manual_seed(seed)` with the values
of its own constructor (see `dtk.models.build`).
"""

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from dtk.models.initial import Initial
from dtk.models.shards import local_rows

BLOCK = 2**20
"""Elements per random block: what a rank generates beyond its own shard is less than two of them."""


def initialize_model(model: nn.Module, seed: int) -> None:
    """Fill every parameter of a model that has `initial`, one after another. Names are the model's own.

    Args:
        model: has memory (not meta), plain or sharded; must carry no wrapper that renames parameters.
        seed: of the whole run; the parameters' own streams are derived from it.
    """
    for name, parameter in model.named_parameters():
        initialize(parameter, name, model.initial(name), seed)  # type: ignore[operator]


def initialize(parameter: Tensor, name: str, initial: Initial, seed: int) -> None:
    """Fill a parameter in place; of a DTensor only this rank's shard, without communication.

    Args:
        parameter: plain tensor or DTensor sharded on dim 0, any floating dtype and device.
        name: fully qualified, the same under every strategy: it selects the random stream.
        initial: what the values shall be.
        seed: of the run.

    Raises:
        ValueError: a DTensor that is not sharded on dim 0.
    """
    local, first_row = local_rows(parameter)
    if initial.kind == "normal":
        row_size = parameter.numel() // max(parameter.shape[0], 1) if parameter.dim() else 1
        _fill_normal(local.view(-1), first_row * row_size, name, initial.std, seed)
    else:
        local.fill_(1.0 if initial.kind == "ones" else 0.0)


def _fill_normal(flat: Tensor, first: int, name: str, std: float, seed: int) -> None:
    """Fill `flat` with the elements from `first` on of the named stream of normal values."""
    last = first + flat.numel()
    for block in range(first // BLOCK, -(-last // BLOCK) if last > first else 0):
        start = block * BLOCK
        values = _normal_block(seed, name, block, min(BLOCK, last - start))
        values *= np.float32(std)
        part = torch.from_numpy(values[max(first - start, 0) :])
        at = max(start - first, 0)
        flat[at : at + part.numel()].copy_(part)


def _normal_block(seed: int, name: str, block: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Return the first `count` standard normal values of one block, as float32.

    Philox (Salmon et al. 2011) takes a 128-bit key, so two blocks never share a stream in practice; torch's
    own CPU generator keeps 32 bits of its seed, where two of 100,000 blocks would most likely be equal.
    Values come from the host on every device: a run on GPUs starts from the weights of a run on CPUs.
    """
    key = hashlib.blake2b(f"{seed}\0{name}\0{block}".encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8")))
    return generator.standard_normal(count, dtype=np.float32)
