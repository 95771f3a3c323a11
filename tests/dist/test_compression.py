"""Compressed gradients: with error feedback the loss comes where whole gradients bring it; overflows are counted."""

from dataclasses import replace

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

TASK = {
    "model": replace(config().model, layers=1, width=16, heads=2),
    "data": replace(config().data, sequence_length=16),
    "train": replace(config().train, steps=300, micro_batch_size=8, clip_norm=None),
    # Plain SGD: with momentum or Adam what arrives late counts more often than once (docs/strategies.md).
    "optimizer": schema.SGDConfig(lr=0.1, momentum=0.0, nesterov=False),
    "schedule": schema.ConstantSchedule(warmup_steps=10),
}
FEW = replace(TASK["train"], steps=100)
ADAM = {"optimizer": schema.AdamWConfig(lr=1e-3), "train": FEW}
HOOKS = {
    "none": DDPConfig(),
    "int8": DDPConfig(communication_hook="int8"),
    "topk": DDPConfig(communication_hook="topk", topk_ratio=0.01),
    "topk forgets": DDPConfig(communication_hook="topk", topk_ratio=0.01, error_feedback=False),
    "powersgd": DDPConfig(communication_hook="powersgd", powersgd_rank=1),
    "powersgd forgets": DDPConfig(communication_hook="powersgd", powersgd_rank=1, error_feedback=False),
}


@pytest.mark.timeout(600)
def test_error_feedback_brings_the_loss_of_whole_gradients(tmp_path):
    cases = {name: {**TASK, "strategy": strategy} for name, strategy in HOOKS.items()}
    for name in ("int8", "powersgd", "powersgd forgets"):
        cases[name]["train"] = FEW
    cases |= {f"{name}, adamw": {**TASK, **ADAM, "strategy": HOOKS[name]} for name in ("none", "int8")}
    ranks = run_ranks("tests.dist.training_ranks:train_as_recorded", 2, cases, str(tmp_path), timeout_s=500)
    assert ranks[0] == ranks[1], "replicas drifted apart"
    final = {name: sum(losses[-20:]) / 20 for name, (losses, _, _) in ranks[0].items()}
    early = sum(ranks[0]["none"][0][80:100]) / 20
    assert final["int8"] == pytest.approx(early, rel=0.001)
    assert final["powersgd"] == pytest.approx(early, rel=0.01)
    assert final["powersgd forgets"] > 1.015 * early
    assert final["int8, adamw"] == pytest.approx(final["none, adamw"], rel=0.01)
    assert final["topk"] == pytest.approx(final["none"], rel=0.01)
    assert final["topk forgets"] > 1.02 * final["none"]


FSDP = {
    "whole": FSDPConfig(),
    "both": FSDPConfig(quantized_weights=True, quantized_gradients=True),
}


@pytest.mark.timeout(600)
def test_int8_weights_and_gradients_of_fsdp_train_alike_over_200_steps(tmp_path):
    """The tolerance is relative, of the mean of the last 20 losses; measured: 0.1%."""
    task = {**TASK, "optimizer": config().optimizer, "train": replace(TASK["train"], steps=200)}
    cases = {name: {**task, "strategy": strategy} for name, strategy in FSDP.items()}
    ranks = run_ranks("tests.dist.training_ranks:train_as_recorded", 2, cases, str(tmp_path), timeout_s=500)
    final = {name: sum(losses[-20:]) / 20 for name, (losses, _, _) in ranks[0].items()}
    assert ranks[0]["both"][0] != ranks[0]["whole"][0]
    assert final["both"] == pytest.approx(final["whole"], rel=0.01)
    reduced = {name: began["reduce_dtype"] for name, (_, began, _) in ranks[0].items()}
    assert reduced == {"whole": "float32", "both": "int8 by blocks of 256"}


@pytest.mark.timeout(120)
def test_what_float16_cannot_hold_is_counted_and_said(tmp_path):
    hooks = {kind: {"strategy": DDPConfig(communication_hook=kind)} for kind in ("fp16", "bf16")}
    ranks = run_ranks("tests.dist.compression_ranks:large_gradients", 2, hooks, str(tmp_path))
    assert ranks[0] == ranks[1] | {"fp16": (ranks[1]["fp16"][0], True)}  # Rank 0 speaks.
    assert ranks[0]["fp16"][0] > 0 and ranks[0]["bf16"] == (None, False)


@pytest.mark.timeout(120)
def test_errors_of_another_layout_start_at_zero_and_rank_0_says_so(tmp_path):
    """Not where there are none: a checkpoint without compression, or a resume without it."""
    few = {
        "train": replace(config().train, steps=4),
        "checkpoint": schema.CheckpointConfig(every=2, at_end=False, keep=9),
    }
    topk, plain = {**few, "strategy": HOOKS["topk"]}, {**few, "strategy": HOOKS["none"]}
    written = [("topk", topk, None), ("plain", plain, None)]
    again = [("same", topk, "topk"), ("to topk", topk, "plain"), ("to plain", plain, "topk")]
    ranks = run_ranks("tests.dist.compression_ranks:resumed", 2, [*written, *again], str(tmp_path))
    assert not any(said for results in ranks for _, said in results.values())
    more = [("three ranks", {**topk, "train": replace(few["train"], steps=6, global_batch_size=12)}, "topk")]
    ranks = run_ranks("tests.dist.compression_ranks:resumed", 3, more, str(tmp_path))
    assert [results["three ranks"][1] for results in ranks] == [True, False, False]
