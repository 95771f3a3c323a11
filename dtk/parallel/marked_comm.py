"""FSDP2's collectives inside communication regions, through the comm objects that it lets one replace."""

from typing import Any

from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from dtk.parallel.mesh import SECONDARY
from dtk.parallel.regions import communication


class MarkedAllGather(DefaultAllGather):  # type: ignore[misc]
    """all_gather of one unit's parameters over a mesh dimension.

    Args:
        dimension: of the mesh.
        secondary: ranks of the group that gathers what forward left of them; 0 = none does.
    """

    def __init__(self, dimension: str, secondary: int = 0) -> None:
        self.dimension, self.secondary = dimension, secondary

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather; returns the work handle when asynchronous."""
        if not self.is_secondary(group):
            self.copied()
        dimension = SECONDARY if self.is_secondary(group) else self.dimension
        with communication("all_gather", output_tensor.nbytes, dimension):
            return super().__call__(output_tensor, input_tensor, group, async_op)

    def is_secondary(self, group: Any) -> bool:
        """Whether it is the gather for backward inside a part of the ranks."""
        return bool(group.size() == self.secondary)

    def copied(self) -> None:
        """Hear that the shards of the unit were copied; what a tier replaces."""


class MarkedReduceScatter(DefaultReduceScatter):  # type: ignore[misc]
    """reduce_scatter of one unit's gradients over a mesh dimension."""

    def __init__(self, dimension: str) -> None:
        self.dimension = dimension

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Reduce and scatter; returns the work handle when asynchronous."""
        with communication("reduce_scatter", input_tensor.nbytes, self.dimension):
            return super().__call__(output_tensor, input_tensor, *arguments, **keywords)
