"""The strategies side by side: which one is recommended as devices shrink, and what each row was composed of."""

import dataclasses
import re

import pytest

from dtk.errors import DtkError
from dtk.plan.compare import VARIANTS, Comparison, Row, compare, search
from dtk.plan.formulas.prediction import Prediction, Traffic
from dtk.plan.job import Difference, Machine, differences, machine, planned_job, predict
from dtk.plan.make import Request, make
from dtk.plan.model import as_json
from dtk.plan.report import document
from dtk.plan.timing.hardware import load_hardware
from tests.unit.plan.samples import GIB, plan

JOB = ["model=gpt2_tiny", "model.layers=8", "data=synthetic", "data.sequence_length=128", "launcher.world_size=8"]


def compared(memory_bytes: int | None, *more: str, local_size: int = 8) -> Comparison:
    """On a device with so much memory."""
    job = planned_job([*JOB, *more])
    hardware = None
    if memory_bytes is not None:
        hardware = dataclasses.replace(load_hardware("h100_sxm"), memory_bytes=memory_bytes)
    return compare(job, Machine(local_size, hardware))


def row(comparison: Comparison, name: str) -> Row:
    return next(item for item in comparison.rows if item.variant.name == name)


def needs(row: Row) -> int:
    assert row.prediction is not None, row.problem
    return row.prediction.memory.peak_bytes


def test_the_simplest_that_fits_is_recommended_on_every_device() -> None:
    free = compared(1 << 40)
    assert free.recommended is row(free, "ddp")
    assert "single would fit, but uses only 1 rank." in free.reasons
    for item in (row(free, "zero2"), row(free, "fsdp + checkpointing")):
        tight = compared(needs(item))
        chosen = tight.recommended
        assert chosen is not None
        simpler = [other for other in tight.rows[: tight.rows.index(chosen)] if other.variant.strategy != "single"]
        assert needs(chosen) <= needs(item)
        assert all(needs(other) > needs(item) for other in simpler)
        assert f"{chosen.variant.name} is the simplest that fits" in " ".join(tight.reasons)


def test_where_nothing_fits_it_says_what_would() -> None:
    least = min(needs(row) for row in compared(1 << 40).rows)
    comparison = compared(least - 1)
    text = " ".join(comparison.reasons)
    assert comparison.recommended is None
    assert "Nothing fits. The smallest is fsdp + checkpointing + offload" in text
    assert "More ranks do not help" in text or "launcher.world_size=" in text
    assert "More ranks do not help" in " ".join(compared(1 << 16).reasons)


def test_one_rank_takes_single() -> None:
    alone = compared(1 << 40, "launcher.world_size=1")
    assert alone.recommended is row(alone, "single")


def test_without_a_device_nothing_is_recommended() -> None:
    comparison = compared(None)
    assert comparison.recommended is None
    assert "hardware=NAME" in comparison.reasons[0]
    assert all(row.prediction is not None and row.prediction.fits is None for row in comparison.rows)


def test_what_was_typed_for_a_strategy_stays_with_it() -> None:
    """DDP with one bucket makes one call; fsdp knows no buckets and is composed without the key."""
    comparison = compared(None, "strategy=ddp", "strategy.bucket_cap_mb=1000", "train.activation_checkpoint_every=2")
    calls = {
        name: prediction.traffic[0].count
        for name in ("ddp", "fsdp")
        if (prediction := row(comparison, name).prediction)
    }
    assert calls["ddp"] <= 2 < calls["fsdp"]
    assert row(comparison, "ddp").overrides == ("strategy=ddp", "train.activation_checkpoint_every=0")
    assert row(comparison, "ddp + checkpointing").overrides[-1] == "train.activation_checkpoint_every=2"


def test_hsdp_shards_inside_a_node_and_replicates_across() -> None:
    result = row(compared(None, "launcher.world_size=16", local_size=4), "hsdp")
    assert "strategy.dp_shard=4" in result.overrides
    assert result.prediction is not None
    links = {transfer.group: (transfer.ranks, transfer.link) for transfer in result.prediction.traffic}
    assert links["dp_shard"] == (4, "intra_node")
    assert links["dp_replicate"] == (4, "inter_node")


def test_the_row_of_hsdp_is_the_same_whatever_was_typed() -> None:
    wide = "launcher.world_size=16"
    rows = [row(compared(None, wide, f"strategy={text}", local_size=4), "hsdp") for text in ("ddp", "fsdp", "hsdp")]
    assert rows[0] == rows[1] == rows[2]
    own = row(compared(None, wide, "strategy=hsdp", "strategy.dp_replicate=2", local_size=4), "hsdp")
    assert own.prediction is not None
    assert {transfer.group: transfer.ranks for transfer in own.prediction.traffic}["dp_shard"] == 8


def test_what_is_too_large_is_named_in_a_few_words() -> None:
    reason = compared(needs(row(compared(1 << 40), "fsdp + checkpointing + offload"))).reasons[0]
    assert re.fullmatch(r"Too large for [^:]+: (\w+ needs [\d.]+ \w+, ){3}and \d+ more\.", reason)


def test_offloading_beyond_the_host_does_not_fit() -> None:
    free = compared(1 << 40)
    least = row(free, "fsdp + checkpointing + offload")
    assert least.prediction is not None
    there = least.prediction.host_bytes_per_node - 1
    hardware = dataclasses.replace(load_hardware("h100_sxm"), memory_bytes=needs(least), host_memory_bytes=there)
    comparison = compare(planned_job(JOB), Machine(8, hardware))
    assert comparison.recommended is None
    assert "fsdp + checkpointing + offload fits the device, but not the host memory" in comparison.reasons[0]


def test_a_strategy_that_cannot_run_the_job_says_why() -> None:
    comparison = compared(None, "optimizer.in_backward=true", "train.clip_norm=null", "train.micro_batch_size=1")
    assert "is incompatible with strategy=ddp" in row(comparison, "ddp").problem
    assert row(comparison, "fsdp").prediction is not None


def test_a_planted_fault_is_no_part_of_the_comparison() -> None:
    with_fault = compared(None, "fault=no_reshard", "experiment=null", "strategy=fsdp", "launcher.world_size=8")
    assert needs(row(with_fault, "fsdp")) < needs(row(with_fault, "zero2"))


def test_every_variant_has_a_name_of_its_own() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) == 14


@pytest.mark.parametrize(("gib", "peak"), [(20.9, False), (21.1, True), (19.1, False), (18.9, True)])
def test_engines_that_differ_by_more_than_a_twentieth_are_shown(gib: float, peak: bool) -> None:
    result = differences(plan(), plan(gib=gib))
    assert ("peak" in [item.what for item in result]) is peak


def test_traffic_must_be_the_same_to_the_byte() -> None:
    def sending(count: int, size_bytes: int) -> Prediction:
        return plan(traffic=(Traffic("all_reduce", "dp", count, size_bytes, 8, 0, "intra_node"),))

    assert differences(sending(3, GIB), sending(3, GIB)) == ()
    assert differences(sending(3, GIB), sending(4, GIB)) == (Difference("all_reduce over dp", 3, 4, "calls"),)
    assert differences(sending(3, GIB), sending(3, GIB + 1)) == (Difference("all_reduce over dp", GIB, GIB + 1),)
    assert {difference.what for difference in differences(plan(), plan(traffic=()))} == {
        "all_gather over dp_shard",
        "reduce_scatter over dp_shard",
    }


def test_the_simplest_and_the_fastest_are_both_named_where_they_differ() -> None:
    """Sharding the optimizer's work wins where its step is long: a large model on few samples."""
    job = ["model=gpt2_xl", "data=synthetic", "launcher.world_size=16", "strategy=ddp"]
    comparison = compare(planned_job(job), Machine(8, load_hardware("h200")))
    assert comparison.recommended is row(comparison, "ddp")
    assert comparison.fastest is not None and comparison.fastest is not comparison.recommended
    speeds = [
        item.prediction.time.tokens_per_s for item in comparison.rows if item.prediction and not item.variant.offload
    ]
    assert comparison.fastest.prediction.time.tokens_per_s == max(speeds)
    assert f"{comparison.fastest.variant.name} is the fastest that fits" in comparison.reasons[-1]


def test_where_the_simplest_is_the_fastest_only_one_is_named() -> None:
    alone = compared(1 << 40, "launcher.world_size=1")
    assert alone.fastest is None and "fastest" not in " ".join(alone.reasons)


@pytest.mark.parametrize(
    ("hardware", "more", "doubts"),
    [
        ("h200", [], ["precision=fp32: h200 computes matrix products 15 times as fast", "data.sequence_length=128"]),
        ("h200", ["precision=bf16", "data.sequence_length=1024"], []),
        ("h200", ["precision=tf32", "data.sequence_length=512"], []),
        ("cpu", [], []),
    ],
)
def test_a_plan_says_when_its_settings_are_hardly_those_of_a_run(
    hardware: str, more: list[str], doubts: list[str]
) -> None:
    job = ("model=gpt2", "data=synthetic", "launcher.world_size=8", f"hardware={hardware}", *more)
    report = make(Request(overrides=job, engine="closed_form"))
    assert [text[: len(start)] for text, start in zip(report.doubts, doubts, strict=True)] == doubts


SEARCHED = ["model=gpt2_xl", "precision=bf16", "data.sequence_length=1024", "train.global_batch_size=32"]
RANKS = 4
"""The vocabulary of GPT-2 is not divisible by any degree of tensor parallelism, so that the search is small."""


def search_of(*more: str) -> "tuple[object, list[str]]":
    job = planned_job([*SEARCHED, *more], None, RANKS)
    return search(job, machine(job.config, load_hardware("a100_40"))), list(job.overrides)


def test_the_layouts_are_ranked_and_planned_as_typed() -> None:
    result, typed = search_of()
    times = [layout.prediction.time.step_s for layout in result.fitting]
    assert times == sorted(times) and len(times) == 10
    assert all(layout.prediction.fits for layout in result.fitting)
    assert result.layouts >= result.too_large + result.too_slow
    for layout in result.fitting[:2]:
        config = planned_job([*typed, *layout.overrides], None, RANKS).config
        again = predict(config, RANKS, machine(config, load_hardware("a100_40")), "closed_form")
        assert (again.memory, again.time) == (layout.prediction.memory, layout.prediction.time)
    assert result.reasons[0].startswith("The first is ")
    assert " layouts take more than " in result.reasons[-1]
    result, _ = search_of("strategy=ddp", "train.micro_batch_size=8")
    assert any(reason.startswith("Too large for ") for reason in result.reasons)
    assert result.reasons[-1].startswith("1 layout takes more than ")


def test_what_is_typed_stays() -> None:
    result, _ = search_of("strategy=zero2", "train.micro_batch_size=2", "parallel.pp=2")
    assert result.fitting
    for layout in result.fitting:
        assert {"strategy=zero2", "train.micro_batch_size=2", "parallel.pp=2"} <= set(layout.overrides)


def test_the_best_layout_is_the_plan() -> None:
    fixed = ("strategy=fsdp", "train.micro_batch_size=4", "launcher.world_size=4")
    report = make(Request(overrides=(*SEARCHED, *fixed, "hardware=a100_40"), search=True))
    assert report.search is not None and report.plan == report.search.fitting[0].prediction
    assert as_json(report)["search"]["found"][0]["overrides"] == list(report.search.fitting[0].overrides)
    assert any("fastest first" in getattr(block, "title", "") for block in document(report).blocks)


def test_the_ranks_of_cp_are_no_data_parallel_ones() -> None:
    result, _ = search_of("strategy=zero2", "train.micro_batch_size=2", "parallel.cp=2")
    assert result.fitting
    for layout in result.fitting:
        assert layout.prediction.time is not None
        assert "cp" in {each.group for each in layout.prediction.time.transfers}


def test_a_search_needs_a_device() -> None:
    with pytest.raises(DtkError, match="--search needs a device"):
        make(Request(overrides=tuple(SEARCHED), search=True))


def test_a_search_divides_experts_too() -> None:
    job = ["model=moe_tiny", "data=synthetic", "data.vocab_size=512", "strategy=fsdp", "launcher.world_size=4"]
    report = make(Request(overrides=(*job, "train.global_batch_size=8", "hardware=a100_40"), search=True))
    assert report.search is not None
    degrees = {text for each in report.search.fitting for text in each.overrides if text.startswith("parallel.ep=")}
    assert degrees & {"parallel.ep=2", "parallel.ep=4"}
    divided = [each for each in report.search.fitting if "parallel.ep=2" in each.overrides]
    assert all("ep" in {call.group for call in each.prediction.traffic} for each in divided)
