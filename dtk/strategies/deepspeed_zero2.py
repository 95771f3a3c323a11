"""`deepspeed_zero2`: ZeRO stage 2 by the library DeepSpeed."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.engines.deepspeed.engine import DeepSpeed
from dtk.strategies.deepspeed_zero1 import DeepSpeedZero1Config


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero2Config(DeepSpeedZero1Config):
    """DeepSpeed's ZeRO stage 2: gradients and optimizer state are partitioned into equal flat parts."""

    traits = replace(DeepSpeedZero1Config.traits, sharded=("gradients", "optimizer_state"), simplicity=21)
    kept = "P", "P/N", "K/N"
    collectives = "A all_reduces of gradients in buckets, all_gather of updated parameters"
    sent = "2 A P (N-1)/N + P (N-1)/N"
    stage = 2

    name: Literal["deepspeed_zero2"] = "deepspeed_zero2"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero2Config, DeepSpeed
