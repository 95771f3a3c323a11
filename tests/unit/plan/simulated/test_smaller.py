"""Which smaller jobs stand for a deep model or a long pipeline, and what their figures extend to."""

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from dtk.config.schema import CustomModelConfig
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate
from dtk.plan.simulated.smaller import (
    DIRECT,
    Sample,
    depths,
    edge_blocks,
    extended,
    pipelines,
    ranks_of_job,
    samples,
    simulated_places,
)
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.unit.plan.closed_form_jobs import TINY, job as planned

SIZES = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=32", "train.micro_batch_size=1"]


def job(world_size, *overrides):
    return planned_job([*SIZES, *overrides], None, world_size).config


def layers(config, world_size=4):
    return [sample.config.model.layers for sample in samples(config, world_size)]


def test_depths_keep_the_remainder_of_a_period():
    assert layers(job(4, "strategy=fsdp", "model.layers=50")) == [4, 8]
    assert layers(job(4, "strategy=fsdp", "model.layers=12")) == [12]
    assert layers(job(4, "strategy=ddp", "model.layers=50")) == [50]
    assert layers(job(4, "strategy=fsdp", "model.layers=99", "strategy.blocks_per_unit=2")) == [9, 17]


@given(
    layers=st.integers(1, 400),
    unit=st.integers(0, 4),
    every=st.integers(0, 4),
    prefetch=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_two_depths_are_shallower_and_have_the_same_remainder(
    layers: int, unit: int, every: int, prefetch: int
) -> None:
    strategy = FSDPConfig(blocks_per_unit=unit, prefetch_depth=prefetch)
    config = planned(4, strategy, dataclasses.replace(TINY, layers=layers), recompute=every)
    removed = depths(config)
    if len(removed) == 1:
        assert removed == (0,)
        return
    small, large = (layers - n for n in removed)
    period = edge_blocks(config) // 2
    assert layers >= DIRECT and small < large < layers
    assert small % period == large % period == layers % period
    assert small >= (prefetch + 3) * period, "the window of gathered units is full"


def test_jobs_that_are_simulated_whole() -> None:
    """Buckets of a fixed size are not linear in the depth; a custom model has no known blocks."""
    config = planned(4, DDPConfig(), dataclasses.replace(TINY, layers=300))
    assert [sample.config for sample in samples(config, 4)] == [config]
    custom = dataclasses.replace(config, model=CustomModelConfig(_target_="mine.Model", name="mine"))
    assert [sample.config for sample in samples(custom, 4)] == [custom]


@given(per_block=st.integers(-5, 50), offset=st.integers(0, 1000), layers=st.integers(20, 500))
@settings(max_examples=60, deadline=None)
def test_what_grows_in_a_line_is_exact_and_never_negative(per_block: int, offset: int, layers: int) -> None:
    config = planned(4, FSDPConfig(), dataclasses.replace(TINY, layers=layers))
    two = samples(config, 4)
    low, high = ({"bytes": offset + per_block * each.config.model.layers} for each in two)
    assert extended(two, [low, high], Sample(config, 4))["bytes"] == max(0, offset + per_block * layers)


def test_a_long_pipeline_keeps_its_ends_and_what_they_recompute() -> None:
    config = job(64, "parallel.pp=16", "model.layers=50", "train.activation_checkpoint_every=3", "strategy=fsdp",
                 "train.global_batch_size=400")  # fmt: skip
    assert pipelines(config, 64) == [(5, 7), (5, 8), (6, 8)]
    cuts = config.stage_blocks(50)
    for sample, ranks in zip(samples(config, 64), (20, 20, 24), strict=True):
        assert sample.world_size == ranks and sample.config.mesh(ranks).dp_size == 4
        few = sample.config.stage_blocks(sample.config.model.layers)
        for place in simulated_places(16):
            assert len(few[place]) == len(cuts[place]) and few[place].start % 3 == cuts[place].start % 3
    job_itself, first = Sample(config, 64), samples(config, 64)[0]
    assert ranks_of_job(first, job_itself, (0, 4, 8, 12, 16)) == tuple(range(0, 64, 4)), "all stages"
    assert ranks_of_job(first, job_itself, (1, 17)) == (1, 61), "both ends"
    assert ranks_of_job(first, job_itself, (16, 17, 18, 19)) == (60, 61, 62, 63)


def test_pipelines_that_are_not_worth_it_or_not_linear() -> None:
    assert pipelines(job(8, "parallel.pp=8", "model.layers=8", "train.global_batch_size=16"), 8) == [(8, 16)]
    assert pipelines(job(8, "parallel.pp=8", "model.layers=8", "train.global_batch_size=6"), 8) == [(8, 6)]
    assert pipelines(job(2, "parallel.pp=2", "train.global_batch_size=64"), 2) == [(2, 4), (2, 5)]
    for schedule in ("zero_bubble", "zbv"):
        several = [
            "strategy=ddp",
            f"parallel.schedule={schedule}",
            "parallel.stages_per_rank=2",
            "train.global_batch_size=64",
        ]
        assert pipelines(job(2, "model=llama_tiny", "parallel.pp=2", *several), 2) == [(2, 6), (2, 8)]


@pytest.mark.extended
@pytest.mark.timeout(200)
@pytest.mark.parametrize("schedule", ["zbv", "zero_bubble"])
def test_few_micro_batches_stand_for_many_where_backwards_are_split_over_two_stages(schedule, monkeypatch):
    several = [f"parallel.schedule={schedule}", "parallel.stages_per_rank=2", "train.global_batch_size=16"]
    config = job(2, "model=llama_tiny", "strategy=ddp", "parallel.pp=2", *several)
    few = simulate(config, 2)
    monkeypatch.setattr("dtk.plan.simulated.engine.samples", lambda config, ranks: [Sample(config, ranks)])
    whole = simulate(config, 2)
    assert (few.memory, {*few.traffic}) == (whole.memory, {*whole.traffic})


@pytest.mark.parametrize(
    "layout",
    [
        ["strategy=ddp", "model.layers=8", "train.global_batch_size=22"],
        ["strategy=fsdp", "parallel.schedule=gpipe", "model.layers=9", "train.global_batch_size=22"],
        pytest.param(["strategy=ddp", "parallel.schedule=zero_bubble", "model.layers=8", "train.global_batch_size=24"],
                     marks=pytest.mark.extended),
        pytest.param(["strategy=ddp", "parallel.schedule=interleaved_1f1b", "parallel.stages_per_rank=2",
                      "model.layers=14", "train.global_batch_size=49"], marks=pytest.mark.extended),
        pytest.param(["strategy=fsdp", "model.layers=17", "train.activation_checkpoint_every=2",
                      "train.global_batch_size=25"], marks=pytest.mark.extended),
    ],
)  # fmt: skip
@pytest.mark.timeout(120)
def test_the_planes_meet_what_the_whole_pipeline_holds_and_sends(layout, monkeypatch):
    config = job(7, "parallel.pp=7", *layout)
    assert len(samples(config, 7)) == 3
    few = simulate(config, 7)
    monkeypatch.setattr("dtk.plan.simulated.engine.samples", lambda config, ranks: [Sample(config, ranks)])
    whole = simulate(config, 7)
    assert (few.memory, few.parameters) == (whole.memory, whole.parameters)
    assert {*few.traffic} == {*whole.traffic}
