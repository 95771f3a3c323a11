"""The figures at the head of a page: what was recorded and nothing else, of whatever the outcome is."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import Status
from diagnostics.evidence.model import RunEvidence
from diagnostics.report import document as doc
from diagnostics.report.diagnosis import document
from diagnostics.report.html import render
from diagnostics.report.overview import cards
from diagnostics.report.without_cause import run_measures
from tests.unit.compare.folders import measures
from tests.unit.diagnostics.report.samples import finding, report

RUN = {
    "tokens_per_s": 412345.6,
    "step_time_s": 0.125,
    "mfu": 0.413,
    "peak_memory_bytes": 3 << 30,
    "speed_unit": "token",
}
ACCOUNT = {
    "overlap": 0.62, "exposed": 0.12, "copies": 0.0, "idle": 0.04, "traced": 2, "world_size": 2, "on_device": True,
    "no_device_events": False, "waiting": None,
}  # fmt: skip


def shown(**given: Any) -> dict[str, str]:
    head = cards(report(measures=given))
    return {card.title: doc.plain(card.lines[0]) for card in head.cards} if head is not None else {}


def test_a_job_of_which_nothing_was_measured_has_none() -> None:
    assert cards(report()) is None and cards(report(measures={"run": {"mfu": "x"}, "overlap": 3})) is None


def test_a_run_without_traces_has_speed_memory_and_mfu() -> None:
    assert shown(run=RUN) == {
        "412,346": "tokens/s, all ranks",
        "125 ms": "per step, median",
        "3 GiB": "peak memory of rank 0",
        "41.3%": "MFU",
    }


def test_traces_tell_overlap_exposed_and_idle_time_and_the_peak_is_set_against_the_device() -> None:
    spent = measures(60.0, 20.0, 12.0, 3.0)["overlap"] | {"account": ACCOUNT}
    peak = {"ranks": {"0": {"peak_bytes": 1 << 30}, "1": {"peak_bytes": 2 << 30}}}
    texts = shown(overlap=spent, memory=peak, run={"device_memory_bytes": 8 << 30})
    assert texts == {
        "62%": "of the communication overlaps compute",
        "12 ms": "exposed communication per step, mean over ranks",
        "4%": "of the step without any operation",
        "2 GiB": "peak of memory of 8 GiB (25%), rank 1",
    }


def test_long_steps_are_in_seconds() -> None:
    spent = measures(6000.0, 2000.0, 1200.0, 300.0)["overlap"] | {"account": ACCOUNT}
    assert "1.2 s" in shown(overlap=spent)


@pytest.mark.parametrize("expected", [(), ("overlap.small_buckets",)])
def test_they_stand_at_the_head_of_a_page_whether_anything_was_found_or_not(expected: tuple[str, ...]) -> None:
    page = render(document(report(*(finding(cause) for cause in expected), measures={"run": RUN})))
    assert "412,346" in page.partition("</header>")[0]


def test_a_healthy_page_says_so_in_a_word_and_what_was_not_traced_below() -> None:
    run = RunEvidence(
        Path("run"),
        Status(state="finished"),
        {},
        {"hardware": {"gpus": [{"memory_bytes": 5}]}},
        {"figures": RUN},
        {},
        {},
        {},
    )
    result = document(report(run=run))
    head = render(result).partition("</header>")[0]
    assert result.heading == "no cause found" and "412,346" in head and "was not traced (record=full)" in head


@pytest.mark.parametrize("hardware", [None, 7, {"gpus": []}, {"gpus": [7]}, {"gpus": {"memory_bytes": 5}}])
def test_a_damaged_summary_or_manifest_gives_no_figures(hardware: object) -> None:
    summary = {"figures": {"mfu": "high", "loss": [1]}}
    assert run_measures(RunEvidence(Path("run"), None, {}, {"hardware": hardware}, summary, {}, {}, {})) == {}
    assert run_measures(None) == {}
