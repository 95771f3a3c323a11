"""The search over layouts: what it ranks fits and is what the plan says of it; what is typed stays."""

import pytest

from dtk.errors import DtkError
from dtk.plan.engines import machine, predict
from dtk.plan.job import planned_job
from dtk.plan.make import Request, make
from dtk.plan.model import as_json
from dtk.plan.report import document
from dtk.plan.search import search
from dtk.plan.timing.hardware import load_hardware

JOB = ["model=gpt2_xl", "precision=bf16", "data.sequence_length=1024", "train.global_batch_size=32"]
RANKS = 4
"""The vocabulary of GPT-2 is not divisible by any degree of tensor parallelism, so that the search is small."""


def search_of(*more: str) -> "tuple[object, list[str]]":
    job = planned_job([*JOB, *more], None, RANKS)
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
    report = make(Request(overrides=(*JOB, *fixed, "hardware=a100_40"), search=True))
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
        make(Request(overrides=tuple(JOB), search=True))


def test_a_search_divides_experts_too() -> None:
    job = ["model=moe_tiny", "data=synthetic", "data.vocab_size=512", "strategy=fsdp", "launcher.world_size=4"]
    report = make(Request(overrides=(*job, "train.global_batch_size=8", "hardware=a100_40"), search=True))
    assert report.search is not None
    degrees = {text for each in report.search.fitting for text in each.overrides if text.startswith("parallel.ep=")}
    assert degrees & {"parallel.ep=2", "parallel.ep=4"}
    divided = [each for each in report.search.fitting if "parallel.ep=2" in each.overrides]
    assert all("ep" in {call.group for call in each.prediction.traffic} for each in divided)
