"""`single`: one process on one device, the reference for all other strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dtk.sharding.base import Strategy, materialise
from dtk.sharding.traits import StrategyConfig, Traits

if TYPE_CHECKING:
    from torch import nn

    from dtk.sharding.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleConfig(StrategyConfig):
    """One process, one device: the reference for all other strategies."""

    traits = Traits(one_process=True, simplicity=0)
    use_when = "it fits on one device; the reference"

    name: Literal["single"] = "single"


class Single(Strategy):
    """Training in one process on one device, without communication."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise the model on the device."""
        materialise(model, self.context.device, fill)
        return model


CONFIG, STRATEGY = SingleConfig, Single
