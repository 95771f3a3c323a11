"""`zero3`: parameters, gradients and optimizer state sharded; fsdp under the paper's name."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.strategies.fsdp import FSDP, FSDPConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero3Config(FSDPConfig):
    """ZeRO stage 3 (Rajbhandari et al. 2020): parameters, gradients and optimizer state sharded."""

    traits = replace(FSDPConfig.traits, simplicity=5, compared=False)

    name: Literal["zero3"] = "zero3"  # type: ignore[assignment]


CONFIG, STRATEGY = Zero3Config, FSDP
