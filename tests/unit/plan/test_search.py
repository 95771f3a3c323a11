"""The search over layouts: what it ranks fits and is what the plan says of it; what is typed stays."""

import pytest

from dtk.errors import DtkError
from dtk.plan.engines import machine, predict
from dtk.plan.job import planned_job
from dtk.plan.make import Asked, make
from dtk.plan.report.document import document
from dtk.plan.report.model import as_json
from dtk.plan.search import search
from dtk.plan.timing.hardware import load_hardware

JOB = ["model=gpt2_xl", "precision=bf16", "data.sequence_length=1024", "train.global_batch_size=32"]
RANKS = 4
"""The vocabulary of GPT-2 divides by no degree of tensor parallelism, so that the search is small."""


def searched(*more: str) -> "tuple[object, list[str]]":
    job = planned_job([*JOB, *more], None, RANKS)
    return search(job, machine(job.config, load_hardware("a100_40"))), list(job.overrides)


def test_the_layouts_are_ranked_and_planned_as_typed() -> None:
    found, typed = searched()
    times = [one.prediction.time.step_s for one in found.found]
    assert times == sorted(times) and len(times) == 10
    assert all(one.prediction.fits for one in found.found)
    assert found.layouts >= found.too_large + found.too_slow
    for one in found.found[:2]:
        config = planned_job([*typed, *one.overrides], None, RANKS).config
        again = predict(config, RANKS, machine(config, load_hardware("a100_40")), "closed_form")
        assert (again.memory, again.time) == (one.prediction.memory, one.prediction.time)
    assert found.reasons[0].startswith("The first is ")
    assert any(reason.startswith("Too large for ") for reason in found.reasons)


def test_what_is_typed_stays() -> None:
    found, _ = searched("strategy=zero2", "train.micro_batch_size=2", "parallel.pp=2")
    assert found.found
    for one in found.found:
        assert {"strategy=zero2", "train.micro_batch_size=2", "parallel.pp=2"} <= set(one.overrides)


def test_the_best_layout_is_the_plan() -> None:
    fixed = ("strategy=fsdp", "train.micro_batch_size=4", "launcher.world_size=4")
    report = make(Asked(overrides=(*JOB, *fixed, "hardware=a100_40"), search=True))
    assert report.search is not None and report.plan == report.search.found[0].prediction
    assert as_json(report)["search"]["found"][0]["overrides"] == list(report.search.found[0].overrides)
    assert any("fastest first" in getattr(block, "title", "") for block in document(report).blocks)


def test_a_search_needs_a_device_and_dimensions_that_formulas_know() -> None:
    with pytest.raises(DtkError, match="--search needs a device"):
        make(Asked(overrides=tuple(JOB), search=True))
    with pytest.raises(DtkError, match=r"--search does not know parallel\.cp=2"):
        make(Asked(overrides=(*JOB, "launcher.world_size=4", "hardware=a100_40", "parallel.cp=2"), search=True))
