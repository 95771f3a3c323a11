"""The time of a whole step: against figures worked by hand, against the traffic of the plan, and as laws."""

import dataclasses
import functools
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.formulas.holding import owned_elements
from dtk.plan.formulas.prediction import Time
from dtk.plan.formulas.shape import model_shape
from dtk.plan.job import planned_job
from dtk.plan.timing.hardware import Hardware, load_hardware
from dtk.plan.timing.time import step_time
from dtk.plan.timing.work import layout
from dtk.sharding.declared import ModelShapes
from tests.work import calls_in

STRATEGIES = ("single", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")


def job(strategy: str, ranks: int, *overrides: str) -> Config:
    mesh = ["strategy.dp_replicate=2"] if strategy == "hsdp" else []
    words = [f"strategy={strategy}", "data=synthetic", *mesh, *overrides]
    return planned_job(words, world_size=ranks).config


def timed(config: Config, ranks: int, hardware: Hardware, local_size: int = 8) -> Time:
    return step_time(config, ranks, dataclasses.replace(hardware, devices_per_node=local_size))


def test_one_rank_by_hand() -> None:
    config = job("single", 1, "model=gpt2_tiny", "train.global_batch_size=8", "train.micro_batch_size=8")
    hardware = load_hardware("cpu")
    done = timed(config, 1, hardware)
    # 6 x 826,112 + 12 x 4 x 128 x 128 FLOPs per token (PaLM), 8 x 128 tokens, at 60 GFLOP/s.
    products = (6 * (858_880 - 256 * 128) + 12 * 4 * 128 * 128) * 1024 / 60e9
    # Forward moves 20 h elements per token and block, backward twice that; the logits 24 bytes each in all.
    streamed = (3 * 20 * 128 * 4 * 4 * 1024 + 24 * 256 * 1024) / 10e9
    # AdamW: 28 bytes per parameter; clipping 12.
    updating = (28 + 12) * 858_880 / 10e9
    assert done.optimizer_s == pytest.approx(updating)
    assert done.compute_s == pytest.approx(products + streamed + updating)
    assert done.step_s == done.compute_s
    assert (done.communication_s, done.exposed_s, done.transfers) == (0, 0, ())
    assert done.scaling_efficiency == 1
    assert done.mfu is None  # Nobody publishes a CPU's peak.
    assert done.tokens_per_s == pytest.approx(1024 / done.step_s)


def test_mfu_is_the_formula_of_dtk() -> None:
    config = job("ddp", 8, "model=gpt2", "precision=bf16", "train.global_batch_size=64", "train.micro_batch_size=8")
    done = timed(config, 8, load_hardware("a100_80"))
    flops = 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 128
    assert done.mfu == pytest.approx(done.tokens_per_s * flops / (8 * 312e12))


def test_recomputation_costs_a_forward_and_no_mfu() -> None:
    batch = ("data.sequence_length=1024", "train.global_batch_size=8", "train.micro_batch_size=8")
    args = ("model=gpt2", "precision=bf16", *batch)
    hardware = load_hardware("h100_sxm")
    base = timed(job("single", 1, *args), 1, hardware)
    full = timed(job("single", 1, *args, "train.activation_checkpoint_every=1"), 1, hardware)
    half = timed(job("single", 1, *args, "train.activation_checkpoint_every=2"), 1, hardware)
    assert full.step_s - base.step_s == pytest.approx(2 * (half.step_s - base.step_s))
    # The forward of twelve blocks of 12 h^2 + 13 h parameters on 8 x 1024 tokens, which streams 10 h numbers a token in
    # float32, casts two norms and streams 10 h in 16 bits.
    products = 2 * (12 * 768**2 + 13 * 768) + 4 * 768 * 1024
    forward = 12 * 8192 * (products / (0.65 * 989.4e12) + (10 * 4 + 2 * 6 + 10 * 2) * 768 / (0.85 * 3.35e12))
    assert full.step_s - base.step_s == pytest.approx(forward)
    assert base.mfu is not None and full.mfu is not None
    assert full.mfu == pytest.approx(base.mfu * base.step_s / full.step_s)


@pytest.mark.parametrize(
    ("strategy", "model", "more"),
    [
        *((strategy, "gpt2_tiny", "train.clip_norm=1.0") for strategy in STRATEGIES),
        ("ddp", "llama_tiny", "strategy.find_unused_parameters=true"),
        ("hsdp", "llama_tiny", "train.clip_norm=null"),
        ("fsdp", "bert_tiny", "strategy.blocks_per_unit=3"),
        ("zero2", "bert_tiny", "strategy.blocks_per_unit=0"),
        ("fsdp", "gpt2_tiny", "train.activation_checkpoint_every=1"),
        ("fsdp", "gpt2_tiny", "parallel.tp=2"),
        ("zero1", "llama_tiny", "parallel.tp=4"),
    ],
)
def test_what_is_timed_is_what_is_sent(strategy: str, model: str, more: str) -> None:
    ranks = 1 if strategy == "single" else 8
    data = "data=classification" if model == "bert_tiny" else "data=synthetic"
    batch = (f"train.global_batch_size={ranks * 6}", "train.micro_batch_size=2")
    config = job(strategy, ranks, f"model={model}", data, "precision=bf16", *batch, more)
    prediction = closed_form(config, ranks, 4)
    done = timed(config, ranks, load_hardware("h100_sxm"), 4)
    sent: dict[tuple[str, str], list[int]] = {}
    for transfer in done.transfers:
        entry = sent.setdefault((transfer.op, transfer.group), [0, 0])
        entry[0] += transfer.count
        entry[1] += transfer.size_bytes
    planned: dict[tuple[str, str], list[int]] = {}
    for traffic in prediction.traffic:
        if traffic.group in ("dp", "dp_shard", "dp_replicate", "tp"):
            entry = planned.setdefault((traffic.op, traffic.group), [0, 0])
            entry[0] += traffic.count
            entry[1] += traffic.size_bytes
    assert sent == planned


@pytest.mark.parametrize("hook", ["fp16", "int8", "topk", "powersgd"])
def test_compressed_buckets_are_timed_as_they_travel(hook: str) -> None:
    base = ("model=gpt2", "train.global_batch_size=64", "train.micro_batch_size=8", "train.clip_norm=null")
    plain, small = (
        timed(job("ddp", 8, *base, f"strategy.communication_hook={h}"), 8, load_hardware("a100_40"))
        for h in ("none", hook)
    )
    assert small.communication_s < plain.communication_s
    declared = closed_form(job("ddp", 8, *base, f"strategy.communication_hook={hook}"), 8).traffic
    assert sum(t.count for t in small.transfers) == sum(t.count for t in declared)
    assert sum(t.size_bytes for t in small.transfers) == pytest.approx(sum(t.size_bytes for t in declared), rel=1e-5)


def test_gloo_reduces_the_whole_buffer_to_scatter_it() -> None:
    config = job("fsdp", 2, "model=gpt2_tiny", "train.global_batch_size=4", "train.micro_batch_size=2")
    cpu = load_hardware("cpu")
    on_gloo = timed(config, 2, cpu, 2)
    on_nccl = timed(config, 2, dataclasses.replace(cpu, backend="nccl"), 2)
    seconds = [{t.op: t.seconds for t in done.transfers} for done in (on_gloo, on_nccl)]
    assert seconds[0]["reduce_scatter"] == pytest.approx(2 * seconds[1]["reduce_scatter"])
    # The host waits for each call, so nothing is hidden.
    assert on_gloo.exposed_s == pytest.approx(on_gloo.communication_s)
    assert on_nccl.exposed_s < on_nccl.communication_s


def test_hsdp_keeps_gathers_inside_the_node() -> None:
    args = ("model=gpt2_xl", "precision=bf16", "train.global_batch_size=64", "train.micro_batch_size=1")
    hardware = load_hardware("a100_80")
    whole = timed(job("fsdp", 64, *args), 64, hardware)
    hybrid = timed(job("hsdp", 64, *args, "strategy.dp_replicate=8"), 64, hardware)
    seconds = [sum(t.seconds for t in done.transfers if t.op == "all_gather") for done in (whole, hybrid)]
    assert seconds[1] < seconds[0] / 1.5
    assert {t.algorithm for t in hybrid.transfers if t.group == "dp_replicate"} <= {"ring", "tree"}


def test_the_slowest_rank_of_zero1_updates_the_largest_tensor() -> None:
    shapes = model_shape(job("zero1", 8, "model=gpt2", "train.global_batch_size=8").model).shapes
    owners = owned_elements(shapes, 8)
    assert max(owners) == 50257 * 768
    assert sum(owners) == 124_439_808
    for ranks in (1, 2, 8, 1000):
        config = job("zero1", 8, "model=gpt2", "train.global_batch_size=8")
        mesh = config.strategy.mesh(ranks)
        declared = config.strategy.declare(ModelShapes(shapes, [], shapes), mesh, config.precision, 1)
        assert len(owned_elements(shapes, ranks)) == declared[-1].count


def test_instant_for_a_trillion_parameters_on_4096_ranks() -> None:
    size = ("model.layers=128", "model.width=25600", "model.heads=160", "model.context_length=2048")
    batch = ("data.sequence_length=2048", "train.global_batch_size=16384", "train.micro_batch_size=1")
    for strategy in ("zero1", "hsdp"):
        config = job(strategy, 4096, "model=gpt2_xl", "precision=bf16", *size, *batch)
        done, calls = calls_in(partial(step_time, config, 4096, load_hardware("h100_sxm")))
        assert calls < 200_000
        assert done.mfu is not None and 0.2 < done.mfu < 0.65


class Custom(nn.Module):
    """A model of a user's: two blocks of 12 parameters between two layers, FLOPs not declared."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(3, 4, bias=False) for _ in range(2))
        self.last = nn.Linear(4, 5, bias=False)


def test_a_model_of_the_users_own() -> None:
    target = f"{__name__}.Custom"
    words = (f"model._target_={target}", "model=custom", "model.name=mine", f"allow_targets=[{target}]")
    config = job("fsdp", 4, *words, "train.global_batch_size=8")
    parts = layout(config)
    assert (parts.before, parts.blocks, parts.after) == (((3, 4),), (((4, 3),), ((4, 3),)), ((5, 4),))
    assert parts.flops_per_token == 6 * (12 + 24 + 20)
    assert parts.block_flops == pytest.approx(6 * 12)
    done = step_time(config, 4, load_hardware("a100_40"))
    # Forward and backward of two units and the root, all in float32.
    assert {t.op: t.size_bytes for t in done.transfers if t.op != "all_reduce"} == {
        "all_gather": 4 * (2 * 2 * 12 + 4 * 4 + 8 * 4),
        "reduce_scatter": 4 * (2 * 12 + 4 * 4 + 8 * 4),
    }
    assert any("your own model" in said for said in done.assumptions)


def test_what_is_assumed_is_said() -> None:
    config = job("fsdp", 8, "model=gpt2", "train.global_batch_size=8", "strategy.offload=parameters")
    said = " ".join(timed(config, 8, load_hardware("h100_sxm")).assumptions)
    assert "offload=parameters" in said and "matmul_fraction" in said and "memory_bytes_per_s" not in said
    assert "torch.compile" not in said


def test_a_precision_that_the_hardware_does_not_know() -> None:
    config = job("single", 1, "model=gpt2_tiny", "precision=bf16", "train.global_batch_size=4")
    rates = {"float32": 1e9}
    with pytest.raises(DtkError, match="no rate for bfloat16"):
        timed(config, 1, dataclasses.replace(load_hardware("cpu"), matmul_flops=rates))


@functools.cache
def some_job(strategy: str) -> Config:
    return job(strategy, 2, "model=gpt2")


faster: Any = st.floats(1, 50)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    strategy=st.sampled_from(STRATEGIES[1:]),
    ranks=st.sampled_from([2, 8, 64, 512]),
    preset=st.sampled_from(["a100_40", "rtx4090", "cpu"]),
    micro=st.integers(1, 4),
    rounds=st.integers(1, 3),
    every=st.integers(0, 2),
    speed=st.tuples(faster, faster, faster),
)
def test_laws(
    strategy: str, ranks: int, preset: str, micro: int, rounds: int, every: int, speed: tuple[float, float, float]
) -> None:
    config = some_job(strategy)
    train = dataclasses.replace(
        config.train,
        global_batch_size=micro * rounds * ranks,
        micro_batch_size=micro,
        activation_checkpoint_every=every,
    )
    config = dataclasses.replace(config, train=train)
    hardware = load_hardware(preset)
    done = step_time(config, ranks, hardware)
    assert done.compute_s + done.exposed_s == pytest.approx(done.step_s)
    assert -1e-12 <= done.exposed_s <= done.communication_s * (1 + 1e-9)
    assert 0 < done.scaling_efficiency <= 1
    assert done.communication_s == pytest.approx(sum(t.seconds for t in done.transfers))
    better = dataclasses.replace(
        hardware,
        intra_node_bytes_per_s=hardware.intra_node_bytes_per_s * speed[0],
        inter_node_bytes_per_s=hardware.inter_node_bytes_per_s * speed[1],
        memory_bytes_per_s=hardware.memory_bytes_per_s * speed[2],
    )
    assert step_time(config, ranks, better).step_s <= done.step_s * (1 + 1e-9)


@pytest.mark.parametrize(
    "model",
    [
        ["model=gpt2_tiny"],
        ["model=llama_tiny", "model.tie_weights=true"],
        ["model=llama_tiny", "model.tie_weights=false"],
        ["model=bert_tiny", "data=classification"],
    ],
    ids=["gpt", "tied", "untied", "encoder"],
)
def test_flops_are_those_that_the_models_count(model: list[str]) -> None:
    config = planned_job([*model, "data.sequence_length=64"], world_size=1).config
    with torch.device("meta"):
        built: Any = build_model(config.model, [])
    assert layout(config).flops_per_token == built.flops_per_token(64)
