"""FSDP2's collectives inside communication regions, through the comm objects that it lets one replace."""

from typing import Any

from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from dtk.parallel.regions import communication


class MarkedAllGather(DefaultAllGather):  # type: ignore[misc]
    """all_gather of one unit's parameters over a mesh dimension."""

    def __init__(self, dimension: str) -> None:
        self.dimension = dimension

    def __call__(self, output_tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Gather; returns the work handle when asynchronous."""
        with communication("all_gather", output_tensor.nbytes, self.dimension):
            return super().__call__(output_tensor, *arguments, **keywords)


class MarkedReduceScatter(DefaultReduceScatter):  # type: ignore[misc]
    """reduce_scatter of one unit's gradients over a mesh dimension."""

    def __init__(self, dimension: str) -> None:
        self.dimension = dimension

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Reduce and scatter; returns the work handle when asynchronous."""
        with communication("reduce_scatter", input_tensor.nbytes, self.dimension):
            return super().__call__(output_tensor, input_tensor, *arguments, **keywords)
