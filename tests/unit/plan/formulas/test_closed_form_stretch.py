"""A step of which a part is walked against the same step walked whole: every figure is the same."""

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.closed_form import closed_form, memory
from dtk.plan.formulas.holding import owned_elements
from dtk.plan.job import planned_job
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import LLAMA, TINY, gpt, job
from tests.work import calls_in

REPLICATED = st.sampled_from([SingleConfig(), DDPConfig(), DDPConfig(gradient_as_bucket_view=False), Zero1Config()])
SHARDED = st.builds(
    FSDPConfig,
    blocks_per_unit=st.integers(0, 3),
    prefetch_depth=st.integers(0, 4),
    reshard_after_forward=st.sampled_from([True, False, 2]),
    offload=st.sampled_from(["none", "optimizer", "parameters"]),
    offload_to=st.sampled_from(["host", "nvme"]),
)


OPTIMIZERS = [AdamWConfig(), AdamWConfig(in_backward=True), SGDConfig()]


@given(
    strategy=st.one_of(REPLICATED, SHARDED, st.builds(HSDPConfig, dp_replicate=st.just(2))),
    model=st.sampled_from([TINY, LLAMA, dataclasses.replace(TINY, dropout=0.1)]),
    layers=st.integers(1, 70),
    rounds=st.integers(1, 6),
    recompute=st.sampled_from([0, 0, 1, 2, 3]),
    precision=st.sampled_from(["float32", "bfloat16"]),
    device=st.sampled_from(["cpu", "cuda"]),
    optimizer=st.sampled_from(OPTIMIZERS),
    sequence=st.sampled_from([4, 64, 256]),
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_left_out_changes_nothing(
    strategy, model, layers, rounds, recompute, precision, device, optimizer, sequence
):
    ranks = 1 if strategy.name == "single" else 4
    config = job(
        ranks,
        strategy,
        dataclasses.replace(model, layers=layers),
        sequence=sequence,
        rounds=rounds,
        precision=precision,
        device=device,
        recompute=recompute,
        optimizer=optimizer,
    )
    assert memory(config, ranks) == memory(config, ranks, whole=True)


CUT = {
    "tp in a pipeline": (8, ["strategy=fsdp", "parallel.pp=2", "parallel.tp=2"]),
    "recomputed": (4, ["strategy=zero2", "parallel.pp=4", "train.activation_checkpoint_every=2"]),
    "interleaved": (
        2,
        ["strategy=ddp", "parallel.pp=2", "parallel.schedule=interleaved_1f1b", "parallel.stages_per_rank=2"],
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_stages_and_micro_batches_that_are_left_out_change_nothing(case):
    ranks, layout = CUT[case]
    batch = ["data=synthetic", "train.global_batch_size=40", "train.micro_batch_size=1", "launcher.device=cpu"]
    config = planned_job(["model=gpt2_tiny", "model.layers=60", *layout, *batch], None, ranks).config
    assert memory(config, ranks) == memory(config, ranks, whole=True)


def test_a_deep_step_with_many_micro_batches_costs_no_more_than_a_small_one():
    config = job(8, FSDPConfig(), gpt(100_000, 128, 4), rounds=125_000, precision="bfloat16", device="cuda")
    result, calls = calls_in(lambda: memory(config, 8))
    assert calls < 150_000
    assert result.peak_bytes > 100_000 * 200_000 * 12 / 8
    small = job(8, FSDPConfig(), gpt(12, 128, 4), rounds=3, precision="bfloat16", device="cuda")
    many = job(8, FSDPConfig(), gpt(12, 128, 4), rounds=300, precision="bfloat16", device="cuda")
    few, lots = (closed_form(item, 8).traffic for item in (small, many))
    assert [item.size_bytes * (100 if item.op == "all_gather" else 1) for item in few] == [
        lot.size_bytes for lot in lots
    ]


@given(
    sizes=st.lists(st.tuples(st.sampled_from([(3,), (8,), (2, 4), (5, 7), (64, 64)]), st.integers(1, 40)), min_size=1),
    ranks=st.integers(1, 9),
)
def test_dealing_equal_parameters_out_in_rounds_is_dealing_them_one_by_one(sizes, ranks):
    shapes = [shape for shape, count in sizes for _ in range(count)]
    owned = [0] * ranks
    for matrices in (True, False):
        for size in sorted((math.prod(s) for s in shapes if (len(s) >= 2) == matrices), reverse=True):
            owned[owned.index(min(owned))] += size
    assert owned_elements(shapes, ranks) == owned
