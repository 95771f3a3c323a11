"""`deepspeed_zero2`: ZeRO stage 2 by the library DeepSpeed."""

from dataclasses import dataclass
from typing import Literal

from dtk.engines.deepspeed.engine import DeepSpeed
from dtk.sharding.traits import traits_beside
from dtk.strategies.deepspeed_zero1 import DeepSpeedZero1Config


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero2Config(DeepSpeedZero1Config):
    """DeepSpeed's ZeRO stage 2: gradients and optimizer state are partitioned into equal flat parts."""

    traits = traits_beside(__file__, DeepSpeedZero1Config.traits)
    stage = 2

    name: Literal["deepspeed_zero2"] = "deepspeed_zero2"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero2Config, DeepSpeed
