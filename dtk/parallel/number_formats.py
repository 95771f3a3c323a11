"""Keys of the `precision` section, without torch, as strategies declare the dtypes that they communicate."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Dtypes of compute and of gradient reduction; master weights are always float32."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    reduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    tf32: bool = False
    initial_loss_scale: float | None = None

    @property
    def matmul_dtype(self) -> str:
        """Dtype of the matrix products on CUDA: tf32 or the compute dtype."""
        return "tf32" if self.tf32 else self.compute_dtype
