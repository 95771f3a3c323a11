"""`zero2`: gradients and optimizer state sharded, gathered parameters kept from forward to backward."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.errors import DtkError
from dtk.strategies.fsdp import FSDP, FSDPConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero2Config(FSDPConfig):
    """ZeRO stage 2 (Rajbhandari et al. 2020): as zero3, with parameters kept from forward to backward."""

    traits = replace(FSDPConfig.traits, simplicity=4, keeps_gathered=True)
    kept = "P/N (P from forward to backward)", "P/N", "K/N"
    collectives = "A all_gathers and one reduce_scatter per unit"
    sent = "A P (N-1)/N + P (N-1)/N"
    use_when = "the parameters fit on each device, but gradients and optimizer state do not"

    name: Literal["zero2"] = "zero2"  # type: ignore[assignment]
    reshard_after_forward: bool = False

    def check(self) -> None:
        """Reject settings that make it stage 3."""
        if self.reshard_after_forward:
            what = "strategy=zero2 with strategy.reshard_after_forward=true is ZeRO-3"
            raise DtkError(what, fix="use strategy=zero3 for that")


CONFIG, STRATEGY = Zero2Config, FSDP
