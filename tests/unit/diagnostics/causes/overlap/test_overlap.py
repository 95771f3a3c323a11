from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis import processes
from diagnostics.analysis.step_profile import overview
from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, Style, write
from tests.trace_scenarios import LATE, Scenario, ddp
from tests.unit.diagnostics.causes.overlap.conftest import CAUSES
from tests.unit.diagnostics.causes.overlap.helpers import HEALTHY, SICK, dtk_run, roots, scenario, status


@pytest.mark.parametrize("scenario", SICK, ids=lambda value: value.name)
def test_the_root_cause_is_the_truth(tmp_path: Path, detect: Any, scenario: Scenario) -> None:
    write(scenario.build(), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [(scenario.cause, scenario.ranks)]
    assert set(status(detection)) == {cause.id for cause in CAUSES}
    (finding,) = (item for item in detection.findings if item.cause == scenario.cause)
    assert text_of(finding).remedies and finding.evidence and text_of(finding).measured
    if scenario.cause != "overlap.instrumented":
        step_ms = detection.measures["overlap"]["step_ms"]
        assert finding.cost is not None
        assert 0.02 * step_ms <= finding.cost.value <= step_ms


@pytest.mark.parametrize("scenario", HEALTHY, ids=lambda value: value.name)
@pytest.mark.parametrize("style", [Style(), Style(fractional=False, old=True)], ids=["new", "old"])
def test_nothing_is_said_about_a_healthy_job(tmp_path: Path, detect: Any, scenario: Scenario, style: Style) -> None:
    write(scenario.build(), tmp_path, style)
    detection = detect(tmp_path)
    assert [text_of(finding).summary for finding in detection.findings if finding.status == "confirmed"] == []


@pytest.mark.parametrize(
    "scenario", [item for item in SICK if item.cause != "overlap.instrumented"], ids=lambda value: value.name
)
def test_the_verdict_does_not_depend_on_how_the_trace_is_written(
    tmp_path: Path, detect: Any, scenario: Scenario
) -> None:
    style = Style(shuffled=True, compressed=False, streams=(9, 3), kernel_name="zz_{op}", base_ns=0)
    write(scenario.build(), tmp_path, style)
    assert roots(detect(tmp_path)) == [(scenario.cause, scenario.ranks)]


def test_file_names_do_not_matter(tmp_path: Path, detect: Any) -> None:
    paths = write(scenario("longer_compute").build(), tmp_path)
    for path, name in zip(paths, ("z.json.gz", "b.json.gz", "m.json.gz", "a.json.gz")):
        path.rename(tmp_path / name)
    assert roots(detect(tmp_path)) == [("overlap.skew", (LATE,))]


@pytest.mark.parametrize(
    ("name", "config", "remedy"),
    [
        ("one_bucket", {"strategy": {"name": "ddp", "bucket_cap_mb": 1000.0}}, "strategy.bucket_cap_mb=25"),
        ("tiny_buckets", {"strategy": {"name": "ddp", "bucket_cap_mb": 0.1}}, "strategy.bucket_cap_mb=3"),
        ("root_only", {"strategy": {"name": "fsdp", "blocks_per_unit": 0}}, "strategy.blocks_per_unit=1"),
        ("no_prefetch", {"strategy": {"name": "fsdp", "prefetch_depth": 0}}, "strategy.prefetch_depth=1"),
        ("tiny_units", {"strategy": {"name": "fsdp", "blocks_per_unit": 1}}, "strategy.blocks_per_unit=6"),
        ("find_unused", {"strategy": {"find_unused_parameters": True}}, "strategy.find_unused_parameters=false"),
        ("accumulation", {"train": {"micro_batch_size": 2}}, "train.micro_batch_size=8"),
        ("bound", {"strategy": {"name": "ddp"}}, "strategy.communication_hook=bf16"),
        ("slow_launches", {"train": {"compile": False}}, "train.compile=true"),
    ],
)
def test_of_a_dtk_run_the_remedy_is_an_override(
    tmp_path: Path, detect: Any, name: str, config: dict[str, Any], remedy: str
) -> None:
    scenario = next(item for item in SICK if item.name == name)
    write(scenario.build(), tmp_path)
    (finding,) = (item for item in detect(tmp_path, run=dtk_run(config)).findings if item.cause == scenario.cause)
    assert [(item.kind, item.change) for item in text_of(finding).remedies] == [("override", remedy)]


def test_one_unit_of_an_own_model_that_was_to_have_many(tmp_path: Path, detect: Any) -> None:
    """It has blocks_per_unit=1 already, so that is no advice; of dtk's own models the setting proves the units."""
    scenario = next(item for item in SICK if item.name == "root_only")
    write(scenario.build(), tmp_path)
    config = {"strategy": {"name": "fsdp", "blocks_per_unit": 1}, "model": {"architecture": "custom"}}
    (finding,) = (item for item in detect(tmp_path, run=dtk_run(config)).findings if item.cause == scenario.cause)
    (remedy,) = text_of(finding).remedies
    assert (finding.status, remedy.kind) == ("confirmed", "code") and "model.wrap=[MyBlock]" in remedy.change
    config["model"] = {"architecture": "gpt"}
    (finding,) = (item for item in detect(tmp_path, run=dtk_run(config)).findings if item.cause == scenario.cause)
    assert finding.status == "ruled_out"


def test_every_cause_has_a_scenario() -> None:
    assert {cause.id for cause in CAUSES} == {item.cause for item in SICK}


def test_without_a_trace_every_cause_is_undecided_and_says_what_to_record(detect: Any) -> None:
    findings = detect().findings
    assert {finding.cause for finding in findings} == {cause.id for cause in CAUSES}
    assert all(finding.status == "undecided" and "record=full" in text_of(finding).missing for finding in findings)


def test_damaged_files_are_problems_and_the_others_are_used(tmp_path: Path, detect: Any) -> None:
    paths = write(ddp(Simulator()), tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:2000])
    paths[2].write_bytes(b'{"traceEvents": [')
    detection = detect(tmp_path)
    assert set(detection.measures["overlap"]["ranks"]) >= {0, 3}
    assert status(detection)["overlap.skew"] == "undecided"


def test_of_two_windows_of_a_rank_one_is_used(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator()), tmp_path / "first", Style(base_ns=1_700_000_000_000_000_000))
    write(ddp(Simulator(), buckets=1, transfer=6000.0), tmp_path / "second", Style(base_ns=1_700_000_900_000_000_000))
    assert roots(detect(tmp_path)) == [("overlap.single_bucket", (0, 1, 2, 3))]


def test_processes_give_what_one_process_gives(tmp_path: Path, detect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SICK[0].build(), tmp_path)
    alone = detect(tmp_path)
    monkeypatch.setattr(overview, "_LARGE_BYTES", 1)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: {0, 1})
    spread = detect(tmp_path)
    assert spread == alone
