"""FSDP2's collectives inside communication regions, unchanged or quantized to int8 (ZeRO++, Wang et al. 2023)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.optim import ZeroRedundancyOptimizer

from diagnostics.contract.mesh import SECONDARY
from dtk.parallel.collectives import all_gather_single
from dtk.parallel.int8 import Blocks, quantize, total
from dtk.parallel.regions import communication


class MarkedAllGather(DefaultAllGather):  # type: ignore[misc]
    """all_gather of a unit's parameters; a subgroup of `secondary` ranks gathers again for backward, 0 = none."""

    def __init__(self, dimension: str, secondary: int = 0) -> None:
        self.dimension, self.secondary = dimension, secondary

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather; return the work handle if asynchronous."""
        if not self.is_secondary(group):
            self.copied()
        dimension = SECONDARY if self.is_secondary(group) else self.dimension
        with communication("all_gather", output_tensor.nbytes, dimension):
            return super().__call__(output_tensor, input_tensor, group, async_op)

    def is_secondary(self, group: Any) -> bool:
        """Whether this is the gather for backward inside a subgroup."""
        return bool(group.size() == self.secondary)

    def copied(self) -> None:
        """Do nothing after the shards of the unit are copied; a tier replaces this method."""


class MarkedReduceScatter(DefaultReduceScatter):  # type: ignore[misc]
    """reduce_scatter of one unit's gradients over a mesh dimension."""

    def __init__(self, dimension: str) -> None:
        self.dimension = dimension

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Reduce and scatter; return the work handle if asynchronous."""
        with communication("reduce_scatter", input_tensor.nbytes, self.dimension):
            return super().__call__(output_tensor, input_tensor, *arguments, **keywords)


class QuantizedAllGather(MarkedAllGather):
    """all_gather of a unit's shards as int8. Every rank also uses its own quantized values, so that all ranks agree.

    Secondary shards hold already quantized values and are sent unchanged: quantized again they would differ from
    forward's. `sizes` are the elements in the shard of each parameter of the unit.
    """

    def __init__(self, dimension: str, sizes: Sequence[int], secondary: int) -> None:
        super().__init__(dimension, secondary)
        self.blocks = Blocks(sizes)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather synchronously."""
        if self.is_secondary(group):
            return super().__call__(output_tensor, input_tensor, group, async_op)
        self.copied()
        sent = quantize(self.blocks.split(input_tensor.view(1, -1)))
        received = sent.new_empty(group.size() * len(sent), sent.shape[1])
        with communication("all_gather", received.nbytes, self.dimension):
            all_gather_single(received, sent, group=group)
        self.blocks.unpack(received, output_tensor.view(group.size(), -1))
        return None


class QuantizedReduceScatter(MarkedReduceScatter):
    """Reduction of a unit's gradients as int8: an all_to_all, then each rank sums its part in float32.

    `sizes` are the elements in the shard of each parameter of the unit.
    """

    def __init__(self, dimension: str, sizes: Sequence[int]) -> None:
        super().__init__(dimension)
        self.blocks = Blocks(sizes)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter synchronously."""
        assert op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)  # Others are for set_gradient_divide_factor only.
        ranks = group.size()
        sent = quantize(self.blocks.split(input_tensor.view(ranks, -1)))
        received = torch.empty_like(sent)
        with communication("all_to_all", sent.nbytes, self.dimension):
            dist.all_to_all_single(received, sent, group=group)
        summed = total(received, ranks)
        if op == dist.ReduceOp.AVG:
            summed /= ranks
        self.blocks.join(summed, output_tensor.view(1, -1))


class MarkedZeRO(ZeroRedundancyOptimizer):
    """Opens a communication region around each rank's broadcast of its updated parameters."""

    def _broadcast_params_from_rank(self, rank: int) -> Any:
        size = sum(buckets[rank].nbytes for buckets in self._buckets if rank < len(buckets))
        with communication("broadcast", size, "dp"):
            return super()._broadcast_params_from_rank(rank)  # type: ignore[misc]
