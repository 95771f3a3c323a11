"""Computation of the part of a parameter that this rank holds. No rank communicates."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a parameter: `offset[i]` to `offset[i] + size[i]` along each dimension."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def box(self) -> tuple[slice, ...]:
        """Index of the piece in the whole parameter."""
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.size, strict=True))


def local_piece(parameter: Tensor) -> tuple[Tensor, Piece]:
    """Return this rank's part of a parameter, detached but sharing its memory, and its position in the whole.

    Shards are those of `torch.chunk`: equal except for the last ones, which may be short or empty. ValueError if the
    DTensor has placements other than Shard and Replicate.
    """
    size, offset = list(parameter.shape), [0] * parameter.dim()
    if not isinstance(parameter, DTensor):
        return parameter.detach(), Piece(tuple(offset), tuple(size))
    mesh = parameter.device_mesh
    dimensions = list(enumerate(parameter.placements))
    if any(isinstance(placement, _StridedShard) for placement in parameter.placements):
        dimensions.reverse()  # The mesh dimension of fully_shard, which sharded second, is first.
    for dimension, placement in dimensions:
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, Shard | _StridedShard) or placement.dim >= len(size):
            raise ValueError(f"expected shards and replicas, got {parameter.placements}")
        rows = size[placement.dim]
        chunk = -(-rows // mesh.size(dimension))
        skipped = min(rows, chunk * mesh.get_local_rank(dimension))
        size[placement.dim], offset[placement.dim] = min(chunk, rows - skipped), offset[placement.dim] + skipped
    with torch.no_grad():
        local: Tensor = parameter.to_local()
    if list(local.shape) != size:
        raise ValueError(f"expected {size} at {offset} on this rank, the shard has {list(local.shape)}")
    return local.detach(), Piece(tuple(offset), tuple(size))


def mark_copy(parameter: Tensor, index: int, count: int) -> None:
    """Mark a parameter that ranks outside its mesh hold too: pipeline stages that share weights."""
    parameter._dtk_copy = index, count  # type: ignore[attr-defined]


def replica(parameter: Tensor) -> tuple[int, int]:
    """Return (index of this rank among those with the same part of the parameter, number of those ranks).

    They include ranks of its mesh and copies marked by `mark_copy`.
    """
    index, count = getattr(parameter, "_dtk_copy", (0, 1))
    if isinstance(parameter, DTensor):
        for dimension, placement in enumerate(parameter.placements):
            if isinstance(placement, Replicate):
                size = parameter.device_mesh.size(dimension)
                index, count = index * size + parameter.device_mesh.get_local_rank(dimension), count * size
    return index, count


def is_replicated_over(parameter: Tensor, dimension: str) -> bool:
    """Whether the ranks of a mesh dimension hold the same part of a parameter; true for dimensions outside its mesh."""
    if not isinstance(parameter, DTensor):
        return True
    if over_ep(parameter) and dimension == "tp":
        return False
    placements = dict(zip(parameter.device_mesh.mesh_dim_names or (), parameter.placements))
    return isinstance(placements.get(dimension, Replicate()), Replicate)


def over_ep(parameter: Tensor) -> bool:
    """Whether a parameter belongs to experts that are sharded over ranks."""
    return isinstance(parameter, DTensor) and "ep" in (parameter.device_mesh.mesh_dim_names or ())


def cut_shape(parameter: Tensor, over: tuple[str, ...] = ()) -> tuple[int, ...]:
    """Return the shape of this rank's part of a parameter if it were not sharded over the dimensions `over`.

    All other dimensions must shard evenly.
    """
    shape = list(parameter.shape)
    if isinstance(parameter, DTensor):
        for i, placement in enumerate(parameter.placements):
            named = (parameter.device_mesh.mesh_dim_names or ())[i : i + 1]
            if isinstance(placement, Shard | _StridedShard) and not set(named) & set(over):
                shape[placement.dim] //= parameter.device_mesh.size(i)
    return tuple(shape)
