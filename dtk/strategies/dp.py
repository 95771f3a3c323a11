"""`dp`: nn.DataParallel, threads over the CUDA devices of one process. The historical baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dtk.sharding.base import Strategy, materialise
from dtk.sharding.traits import StrategyConfig, Traits

if TYPE_CHECKING:
    from torch import nn

    from dtk.sharding.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class DPConfig(StrategyConfig):
    """nn.DataParallel: one process, threads over all CUDA devices. Kept as the historical baseline."""

    traits = Traits(
        one_process=True,
        least_cuda_devices=2,
        keeps_gradients=True,
        in_backward_conflict="replicas have their own backward",
        simplicity=1,
        compared=False,
    )
    kept = "P", "P on the first device", "K on the first device"
    collectives = "broadcast P, gather outputs, reduce P (inside one process)"
    sent = "about 2 P through the first device"
    use_when = "never for new work: the historical baseline"

    name: Literal["dp"] = "dp"


class DP(Strategy):
    """nn.DataParallel: scatters each batch over the CUDA devices of this process.

    One process makes all copies in CUDA kernels, so there is no process group and no collective to declare.
    """

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise on the first device and replicate in every forward."""
        from torch.nn import DataParallel

        materialise(model, self.context.device, fill)
        return DataParallel(model)


CONFIG, STRATEGY = DPConfig, DP
