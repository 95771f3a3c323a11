"""Settings of autocast and FSDP2's mixed precision, loss scaling for float16. Master weights, states: float32."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from dtk.parallel.number_formats import PrecisionConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def allow_tf32(config: PrecisionConfig) -> None:
    """Set whether CUDA may multiply float32 matrices in TensorFloat-32; process-wide."""
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.allow_tf32 = config.tf32


def autocast(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of the forward pass for strategies with whole parameters."""
    if config.compute_dtype == "float32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[config.compute_dtype])


def mixed_precision_policy(config: PrecisionConfig) -> MixedPrecisionPolicy:
    """Return FSDP2's policy: gathered parameters in the compute dtype, gradients in the reduce dtype.

    Unlike autocast it casts whole units, including norms; the float32 shards remain the master weights.
    """
    if config.compute_dtype == "float32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[config.compute_dtype], reduce_dtype=DTYPES[config.reduce_dtype])


class LossScaler:
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018, Mixed Precision Training).

    torch's GradScaler looks for infinities in each rank's own shard, so under sharding a rank could skip a step that
    the others run. This one uses the global gradient norm, which is the same on every rank.
    """

    growth_interval = 2000

    def __init__(self, initial_scale: float | None) -> None:
        self.scale = initial_scale or 1.0
        self.enabled = initial_scale is not None
        self.good_steps = 0

    def update(self, finite: bool) -> None:
        """Halve the scale after an overflow; double it after `growth_interval` finite steps."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self.good_steps = max(self.scale / 2, 1.0), 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2, 0
