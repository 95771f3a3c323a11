"""ZeroRedundancyOptimizer with its broadcasts inside communication regions. Knows no strategy."""

from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer

from dtk.parallel.regions import communication


class MarkedZeRO(ZeroRedundancyOptimizer):
    """Opens a communication region around each rank's broadcast of its updated parameters."""

    def _broadcast_params_from_rank(self, rank: int) -> Any:
        size = sum(buckets[rank].nbytes for buckets in self._buckets if rank < len(buckets))
        with communication("broadcast", size, "dp"):
            return super()._broadcast_params_from_rank(rank)  # type: ignore[misc]
