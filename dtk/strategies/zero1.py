"""`zero1`: DDP whose optimizer state is sharded, each parameter's state on the one rank that updates it."""

from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from dtk.parallel.regions import communication
from dtk.strategies.base import BuildOptimizer, trained_shapes
from dtk.strategies.ddp import DDP
from dtk.strategies.declared import Collective, zero1_collectives


class _MarkedZeRO(ZeroRedundancyOptimizer):
    """Opens a communication region around each rank's broadcast of its updated parameters."""

    def _broadcast_params_from_rank(self, rank: int) -> Any:
        size = sum(buckets[rank].nbytes for buckets in self._buckets if rank < len(buckets))
        with communication("broadcast", size, "dp"):
            return super()._broadcast_params_from_rank(rank)  # type: ignore[misc]


class Zero1(DDP):
    """ZeRO stage 1 (Rajbhandari et al. 2020, ZeRO, SC20) on torch's ZeroRedundancyOptimizer.

    Whole parameters are dealt out greedily, so the rank that owns the largest one holds the most.
    """

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """An optimizer that keeps state only for this rank's share of the parameters."""
        return _MarkedZeRO(groups, optimizer_class=build, parameters_as_bucket_view=True)  # type: ignore[arg-type]

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """DDP's all_reduces, then one broadcast per rank of the parameters that it updated."""
        return zero1_collectives(self.config, trained_shapes(model.parameters()), self.context.world_size)
