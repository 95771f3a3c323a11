"""`zero2`: gradients and optimizer state sharded, gathered parameters kept from forward to backward."""

from dataclasses import dataclass
from typing import Literal

from dtk.errors import DtkError
from dtk.sharding.traits import traits_beside
from dtk.strategies.fsdp import FSDP, FSDPConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero2Config(FSDPConfig):
    """ZeRO stage 2 (Rajbhandari et al. 2020): gradients and optimizer state sharded."""

    traits = traits_beside(__file__, FSDPConfig.traits)

    name: Literal["zero2"] = "zero2"  # type: ignore[assignment]
    reshard_after_forward: bool = False

    def check(self) -> None:
        """Reject settings that make it stage 3."""
        if self.reshard_after_forward:
            what = "strategy=zero2 with strategy.reshard_after_forward=true is ZeRO-3"
            raise DtkError(what, fix="use strategy=zero3 for that")


CONFIG, STRATEGY = Zero2Config, FSDP
