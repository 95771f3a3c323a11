"""Keys of the `precision` section, without torch: strategies declare what they send in these formats."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Master weights are always float32; these are the types of compute and of gradient reduction."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    reduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    tf32: bool = False
    initial_loss_scale: float | None = None
