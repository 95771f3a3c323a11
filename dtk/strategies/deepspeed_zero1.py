"""`deepspeed_zero1`: ZeRO stage 1 by the library DeepSpeed."""

from dataclasses import dataclass, replace
from typing import Literal

from dtk.engines.deepspeed.config import DeepSpeedConfig
from dtk.engines.deepspeed.engine import DeepSpeed


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedZero1Config(DeepSpeedConfig):
    """DeepSpeed's ZeRO stage 1 (Rajbhandari et al. 2020): the optimizer state is partitioned into equal flat parts."""

    traits = replace(DeepSpeedConfig.traits, sharded=("optimizer_state",), replicated_over="dp", simplicity=20)
    kept = "P", "P", "K/N"
    collectives = "all_reduce of gradients in buckets, all_gather of updated parameters"
    sent = "2 P (N-1)/N + P (N-1)/N"
    stage = 1

    name: Literal["deepspeed_zero1"] = "deepspeed_zero1"  # type: ignore[assignment]


CONFIG, STRATEGY = DeepSpeedZero1Config, DeepSpeed
