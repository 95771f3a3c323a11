"""FSDP2's collectives inside communication regions, through the comm objects it lets one replace."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from dtk.parallel.collectives import all_gather_single, reduce_scatter_single
from dtk.parallel.regions import communication


class _Allocate:
    """Plain allocation from the device's own allocator, as FSDP2 does by default; for a mesh dimension."""

    def __init__(self, dimension: str = "dp_shard") -> None:
        self.dimension = dimension

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an uninitialised buffer of `size` elements per dimension."""
        return torch.empty(*size, dtype=dtype, device=device)


class MarkedAllGather(_Allocate, AllGather):  # type: ignore[misc]
    """all_gather of one unit's parameters."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        """Gather; returns the work handle when asynchronous."""
        with communication("all_gather", output_tensor.nbytes, self.dimension):
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class MarkedReduceScatter(_Allocate, ReduceScatter):  # type: ignore[misc]
    """reduce_scatter of one unit's gradients."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Reduce and scatter; returns the work handle when asynchronous."""
        with communication("reduce_scatter", input_tensor.nbytes, self.dimension):
            return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
