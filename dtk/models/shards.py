"""Which rows of a parameter this rank holds.

Knows plain tensors and DTensors that are sharded on dim 0 (FSDP, HSDP). It only computes: no rank communicates.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard


def local_rows(parameter: Tensor) -> tuple[Tensor, int]:
    """Return this rank's part of a parameter, detached but sharing its memory, and the index of its first row.

    A plain tensor is the whole: (tensor, 0). Shards are cut as `torch.chunk` cuts: equal but for the
    last ones, which may be short or empty.

    Raises:
        ValueError: the DTensor is sharded on another dimension, or in another way.
    """
    if not isinstance(parameter, DTensor):
        return parameter.detach(), 0
    rows, first = (parameter.shape[0] if parameter.dim() else 1), 0
    for dimension, placement in enumerate(parameter.placements):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard or placement.dim != 0:
            raise ValueError(f"expected a parameter sharded on dim 0, got {parameter.placements}")
        chunk = -(-rows // parameter.device_mesh.size(dimension))
        skipped = min(rows, chunk * parameter.device_mesh.get_local_rank(dimension))
        rows, first = min(chunk, rows - skipped), first + skipped
    with torch.no_grad():
        local: Tensor = parameter.to_local()
    if local.dim() and local.shape[0] != rows:
        raise ValueError(f"expected {rows} rows from row {first} on this rank, the shard has {local.shape[0]}")
    return local.detach(), first
