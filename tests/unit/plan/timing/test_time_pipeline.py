"""The time of a pipelined step: its bubble is the schedule's, its messages cost what the link costs."""

import pytest

from dtk.plan.job import Machine, planned_job, predict
from dtk.plan.timing.hardware import load_hardware
from dtk.plan.timing.time import _Job

GPT = ["model=gpt2_xl", "data.sequence_length=1024", "train.clip_norm=null", "train.micro_batch_size=1"]


def step(*overrides, ranks=8):
    hardware = load_hardware("a100_80", None)
    job = planned_job([*GPT, "strategy=ddp", "train.global_batch_size=64", *overrides], None, ranks)
    return predict(job.config, ranks, Machine(hardware.devices_per_node, hardware)).time


def test_a_pipeline_takes_the_time_of_the_work_and_of_its_bubble():
    """Of 8 stages the longest, of 7 blocks, sets the pace; the others delay it by a micro-batch each.

    The 48 blocks and the output projection, worth 2.4, make 6.3 blocks a stage.
    """
    alone, pipeline = step(ranks=1), step("parallel.pp=8")
    slowest_s = pipeline.compute_s
    assert slowest_s == pytest.approx(7 / 6.3 * alone.compute_s / 8, rel=0.02)
    assert pipeline.step_s == pytest.approx(slowest_s + (alone.compute_s - slowest_s) / 64, rel=0.01)
    assert pipeline.compute_s + pipeline.exposed_s + pipeline.bubble_s == pytest.approx(pipeline.step_s)


def test_fewer_micro_batches_are_slower_per_sample():
    many, few = step("parallel.pp=8"), step("parallel.pp=8", "train.global_batch_size=8")
    assert few.tokens_per_s < 0.7 * many.tokens_per_s
    assert few.bubble_s / few.step_s > 3 * many.bubble_s / many.step_s


def test_interleaving_makes_the_bubble_smaller_and_the_messages_more():
    plain = step("parallel.pp=8", "train.global_batch_size=16")
    looped = step(
        *("parallel.pp=8", "train.global_batch_size=16"),
        *("parallel.schedule=interleaved_1f1b", "parallel.stages_per_rank=3"),
    )
    sends = [next(t for t in time.transfers if t.op == "send") for time in (plain, looped)]
    assert looped.step_s < plain.step_s
    assert sends[1].count > 2 * sends[0].count


@pytest.mark.parametrize("strategy", ["fsdp", "zero2", "ddp"])
def test_data_parallel_stages_reduce_after_the_schedule(strategy):
    time = step("parallel.pp=2", f"strategy={strategy}")
    ops = {(transfer.op, transfer.group) for transfer in time.transfers}
    assert ("send", "pp") in ops
    assert ops & {("all_reduce", "dp"), ("reduce_scatter", "dp_shard")}
    assert 0 < time.bubble_s < 0.2 * time.step_s


def test_stages_with_and_without_experts_are_walked_apart():
    """Dense blocks reach into the second of four stages, which the third one is not like."""
    model = ["model=moe_tiny", "model.layers=8", "model.dense_layers=3", "data.sequence_length=64"]
    typed = ["strategy=fsdp", "parallel.pp=4", "parallel.ep=2", "train.global_batch_size=32", "launcher.device=cuda"]
    config = planned_job([*model, *typed], None, 16).config
    job = _Job(config, 16, load_hardware("a100_80", None))
    second, third = (job.walk(part, 2)[0].compute_s for part in job.parts[1:3])
    alone = _Job(config, 16, load_hardware("a100_80", None))
    assert third == alone.walk(alone.parts[2], 2)[0].compute_s
    assert third != second
