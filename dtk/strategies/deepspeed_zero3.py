"""`deepspeed_zero3`: ZeRO stage 3 by the library DeepSpeed."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.engines.deepspeed.config import DeepSpeedConfig
from dtk.engines.deepspeed.engine import DeepSpeed
from dtk.sharding.traits import STATES


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero3Config(DeepSpeedConfig):
    """DeepSpeed's ZeRO stage 3: each parameter is cut into equal flat parts and gathered when its module runs."""

    traits = replace(
        DeepSpeedConfig.traits, sharded=STATES, collectives=("all_gather", "reduce_scatter"), simplicity=22
    )
    kept = "P/N and small parameters whole", "P/N", "K/N"
    collectives = (
        "A all_gathers of large parameters (2 A from 10^9 parameters on), one of small ones; A reduce_scatters"
    )
    sent = "A P (N-1)/N (2 A: those that are freed after forward) + A P (N-1)/N"
    stage = 3

    name: Literal["deepspeed_zero3"] = "deepspeed_zero3"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero3Config, DeepSpeed
