"""Number formats of forward, gathered parameters and gradients; a loss scale that all ranks change alike."""

from contextlib import nullcontext

import pytest
import torch

from dtk.config.schema import PrecisionConfig
from dtk.parallel.precision import LossScaler, allow_tf32, autocast, mixed_precision_policy

CPU = torch.device("cpu")
FLOAT32 = PrecisionConfig(compute_dtype="float32", reduce_dtype="bfloat16")
BFLOAT16 = PrecisionConfig(compute_dtype="bfloat16", reduce_dtype="float32")


def test_matrices_are_multiplied_in_the_compute_type() -> None:
    a = torch.ones(2, 2)
    with autocast(BFLOAT16, CPU):
        assert (a @ a).dtype == torch.bfloat16
    assert isinstance(autocast(FLOAT32, CPU), nullcontext)


def test_fully_shards_policy() -> None:
    policy = mixed_precision_policy(BFLOAT16)
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    whole = mixed_precision_policy(FLOAT32)
    assert (whole.param_dtype, whole.reduce_dtype) == (None, None), "float32 is computed and reduced as it is"


def test_tf32_is_set_for_the_process() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for expected in (True, False):
            allow_tf32(PrecisionConfig(tf32=expected))
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == expected
    finally:
        allow_tf32(PrecisionConfig(tf32=before))


def test_an_overflow_halves_the_scale_and_many_good_steps_double_it() -> None:
    scaler = LossScaler(1024.0)
    scaler.update(finite=False)
    assert (scaler.scale, scaler.good_steps) == (512.0, 0)
    for _ in range(scaler.growth_interval - 1):
        scaler.update(finite=True)
    assert scaler.scale == 512.0
    scaler.update(finite=True)
    assert (scaler.scale, scaler.good_steps) == (1024.0, 0)
    scaler.update(finite=True)
    scaler.update(finite=False)
    assert (scaler.scale, scaler.good_steps) == (512.0, 0), "the count begins anew"


def test_the_scale_never_falls_below_one() -> None:
    scaler = LossScaler(2.0)
    for _ in range(5):
        scaler.update(finite=False)
    assert scaler.scale == 1.0


@pytest.mark.parametrize("finite", [True, False])
def test_without_scaling_nothing_changes(finite: bool) -> None:
    scaler = LossScaler(None)
    scaler.update(finite)
    assert (scaler.enabled, scaler.scale, scaler.good_steps) == (False, 1.0, 0)
