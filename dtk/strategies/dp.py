"""`dp`: nn.DataParallel, threads over the CUDA devices of one process. The historical baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dtk.sharding.base import Strategy, materialise
from dtk.sharding.traits import StrategyConfig, traits_beside

if TYPE_CHECKING:
    from torch import nn

    from dtk.sharding.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class DPConfig(StrategyConfig):
    """nn.DataParallel: one process, threads over all CUDA devices. Kept as the historical baseline."""

    traits = traits_beside(__file__)

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
