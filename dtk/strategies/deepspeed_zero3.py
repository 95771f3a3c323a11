"""`deepspeed_zero3`: ZeRO stage 3 by the library DeepSpeed."""

from dataclasses import dataclass
from typing import Literal

from dtk.engines.deepspeed.config import DeepSpeedConfig
from dtk.engines.deepspeed.engine import DeepSpeed
from dtk.sharding.traits import traits_beside


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero3Config(DeepSpeedConfig):
    """DeepSpeed's ZeRO stage 3: each parameter is cut into equal flat parts and gathered when its module runs."""

    traits = traits_beside(__file__, DeepSpeedConfig.traits)
    stage = 3

    name: Literal["deepspeed_zero3"] = "deepspeed_zero3"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero3Config, DeepSpeed
