"""`deepspeed_zero1`: ZeRO stage 1 by the library DeepSpeed."""

from dataclasses import dataclass
from typing import Literal

from dtk.engines.deepspeed.config import DeepSpeedConfig
from dtk.engines.deepspeed.engine import DeepSpeed
from dtk.sharding.traits import traits_beside


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero1Config(DeepSpeedConfig):
    """DeepSpeed's ZeRO stage 1 (Rajbhandari et al. 2020): the optimizer state is partitioned into equal flat parts."""

    traits = traits_beside(__file__, DeepSpeedConfig.traits)
    stage = 1

    name: Literal["deepspeed_zero1"] = "deepspeed_zero1"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero1Config, DeepSpeed
