"""`deepspeed_zero1`: ZeRO stage 1 as the library DeepSpeed runs it."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.strategies.engines.deepspeed import DeepSpeed
from dtk.strategies.engines.deepspeed_config import DeepSpeedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero1Config(DeepSpeedConfig):
    """DeepSpeed's ZeRO stage 1 (Rajbhandari et al. 2020): the optimizer state cut into equal flat parts."""

    traits = replace(DeepSpeedConfig.traits, sharded=("optimizer_state",), replicated_over="dp", simplicity=20)
    stage = 1

    name: Literal["deepspeed_zero1"] = "deepspeed_zero1"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero1Config, DeepSpeed
