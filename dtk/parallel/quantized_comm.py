"""FSDP2's collectives with int8 on the wire (ZeRO++, Wang et al. 2023: quantised weights, quantised gradients)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtk.parallel.collectives import all_gather_single
from dtk.parallel.int8 import Blocks, quantize, total
from dtk.parallel.marked_comm import MarkedAllGather, MarkedReduceScatter
from dtk.parallel.regions import communication


class QuantizedAllGather(MarkedAllGather):
    """all_gather of a unit's shards as int8. Every rank uses what it sent, not what it has, so that all are alike.

    Secondary shards, of values that were rounded before, travel as they are: rounded again they would differ from
    those of forward.

    Args:
        dimension: of the mesh.
        sizes: elements of the shard of each of the unit's parameters.
        secondary: as in `MarkedAllGather`.
    """

    def __init__(self, dimension: str, sizes: Sequence[int], secondary: int) -> None:
        super().__init__(dimension, secondary)
        self.blocks = Blocks(sizes)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather before it returns."""
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
    """Reduction of a unit's gradients as int8: an all_to_all, then each rank adds up its part in float32.

    Args:
        dimension: of the mesh.
        sizes: elements of the shard of each of the unit's parameters.
    """

    def __init__(self, dimension: str, sizes: Sequence[int]) -> None:
        super().__init__(dimension)
        self.blocks = Blocks(sizes)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce and scatter before it returns."""
        assert op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)  # FSDP2 has others for set_gradient_divide_factor only.
        ranks = group.size()
        sent = quantize(self.blocks.split(input_tensor.view(ranks, -1)))
        received = torch.empty_like(sent)
        with communication("all_to_all", sent.nbytes, self.dimension):
            dist.all_to_all_single(received, sent, group=group)
        summed = total(received, ranks)
        if op == dist.ReduceOp.AVG:
            summed /= ranks
        self.blocks.join(summed, output_tensor.view(1, -1))
