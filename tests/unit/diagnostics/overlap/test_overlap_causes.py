import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.step_profile import overview
from diagnostics.contract.findings import Detection
from diagnostics.detectors.overlap import (
    CAUSES,
    causes_bound,
    causes_idle,
    causes_instrument,
    causes_order,
    causes_reduction,
    causes_units,
)
from diagnostics.evidence.model import RunEvidence
from diagnostics.tree.arbitrate import arbitrate
from diagnostics.tree.built_in import built_in
from tests.trace_generator import Simulator, Style, write
from tests.trace_scenarios import LATE, SCENARIOS, Scenario, ddp, fsdp

SICK = [one for one in SCENARIOS if one.cause]
HEALTHY = [one for one in SCENARIOS if not one.cause]


def roots(detection: Detection) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.cause, one.ranks) for one in arbitrate(built_in(), detection.findings).roots]


def status(detection: Detection) -> dict[str, str]:
    return {one.cause: one.status for one in detection.findings}


def test_every_cause_has_a_scenario_and_a_family() -> None:
    families = (causes_reduction, causes_order, causes_units, causes_bound, causes_idle, causes_instrument)
    assert sorted(CAUSES) == sorted(cause for family in families for cause in family.CAUSES)
    assert set(CAUSES) == {one.cause for one in SICK}


@pytest.mark.parametrize("scenario", SICK, ids=lambda one: one.name)
def test_the_root_cause_is_the_truth(tmp_path: Path, detect: Any, scenario: Scenario) -> None:
    write(scenario.build(), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [(scenario.cause, scenario.ranks)]
    assert set(status(detection)) == set(CAUSES)
    (finding,) = (one for one in detection.findings if one.cause == scenario.cause)
    assert finding.remedies and finding.evidence and finding.measured
    if scenario.cause != "overlap.instrumented":
        step_ms = detection.measures["overlap"]["step_ms"]
        assert finding.cost is not None
        assert 0.02 * step_ms <= finding.cost.value <= step_ms


@pytest.mark.parametrize("scenario", HEALTHY, ids=lambda one: one.name)
@pytest.mark.parametrize("style", [Style(), Style(fractional=False, old=True)], ids=["new", "old"])
def test_nothing_is_said_about_a_healthy_job(tmp_path: Path, detect: Any, scenario: Scenario, style: Style) -> None:
    write(scenario.build(), tmp_path, style)
    detection = detect(tmp_path)
    assert [one.summary for one in detection.findings if one.status == "confirmed"] == []


@pytest.mark.parametrize(
    "scenario", [one for one in SICK if one.cause != "overlap.instrumented"], ids=lambda one: one.name
)
def test_the_verdict_does_not_depend_on_how_the_trace_is_written(
    tmp_path: Path, detect: Any, scenario: Scenario
) -> None:
    style = Style(shuffled=True, compressed=False, streams=(9, 3), kernel_name="zz_{op}", base_ns=0)
    write(scenario.build(), tmp_path, style)
    assert roots(detect(tmp_path)) == [(scenario.cause, scenario.ranks)]


def test_file_names_do_not_matter(tmp_path: Path, detect: Any) -> None:
    paths = write(next(one for one in SICK if one.name == "longer compute").build(), tmp_path)
    for path, name in zip(paths, ("z.json.gz", "b.json.gz", "m.json.gz", "a.json.gz")):
        path.rename(tmp_path / name)
    assert roots(detect(tmp_path)) == [("overlap.skew", (LATE,))]


def test_one_rank_alone_makes_no_claim_about_others(tmp_path: Path, detect: Any) -> None:
    paths = write(next(one for one in SICK if one.name == "longer compute").build(), tmp_path)
    for rank in (0, LATE):
        detection = detect(paths[rank])
        found = {one.cause: one for one in detection.findings}
        assert found["overlap.skew"].status == "undecided"
        assert "one rank alone" in found["overlap.skew"].summary
        assert found["overlap.skew"].missing
        assert not [
            one for one in detection.findings if one.status == "confirmed" and one.ranks and one.ranks != (rank,)
        ]


def test_a_rank_that_was_not_traced_may_be_the_late_one(tmp_path: Path, detect: Any) -> None:
    paths = write(next(one for one in SICK if one.name == "longer compute").build(), tmp_path)
    assert status(detect(*paths[:LATE]))["overlap.skew"] == "undecided"


def test_several_late_ranks_are_all_named(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(ranks=6), scale=lambda rank: 1.4 if rank in (1, 4) else 1.0), tmp_path)
    (finding,) = (one for one in detect(tmp_path).findings if one.cause == "overlap.skew")
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (1, 4), (0, 2, 3, 5))
    assert "computes longer" in finding.summary


def test_skew_costs_what_the_late_rank_adds(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), scale=lambda rank: 1.4 if rank == LATE else 1.0), tmp_path / "late")
    write(ddp(Simulator()), tmp_path / "even")
    late, even = detect(tmp_path / "late"), detect(tmp_path / "even")
    (finding,) = (one for one in late.findings if one.cause == "overlap.skew")
    saved = late.measures["overlap"]["step_ms"] - even.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.05)


def test_a_fix_wins_what_was_promised(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, transfer=6000.0), tmp_path / "one")
    write(ddp(Simulator(), buckets=4, transfer=6000.0), tmp_path / "four")
    one, four = detect(tmp_path / "one"), detect(tmp_path / "four")
    (finding,) = (f for f in one.findings if f.cause == "overlap.single_bucket")
    saved = one.measures["overlap"]["step_ms"] - four.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.1)


def test_below_two_percent_nothing_is_confirmed(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, size=2 << 20, transfer=150.0), tmp_path)
    found = {one.cause: one for one in detect(tmp_path).findings}
    assert found["overlap.single_bucket"].status == "ruled_out"
    assert "below 2%" in found["overlap.single_bucket"].measured


def run(config: dict[str, Any]) -> RunEvidence:
    return RunEvidence(Path("/run"), None, config, {}, {}, {}, {}, {})


@pytest.mark.parametrize(
    ("name", "config", "remedy"),
    [
        ("one bucket", {"strategy": {"name": "ddp", "bucket_cap_mb": 1000.0}}, "strategy.bucket_cap_mb=25"),
        ("tiny buckets", {"strategy": {"name": "ddp", "bucket_cap_mb": 0.1}}, "strategy.bucket_cap_mb=3"),
        ("root only", {"strategy": {"name": "fsdp", "blocks_per_unit": 0}}, "strategy.blocks_per_unit=1"),
        ("no prefetch", {"strategy": {"name": "fsdp", "prefetch_depth": 0}}, "strategy.prefetch_depth=1"),
        ("tiny units", {"strategy": {"name": "fsdp", "blocks_per_unit": 1}}, "strategy.blocks_per_unit=6"),
        ("find unused", {"strategy": {"find_unused_parameters": True}}, "strategy.find_unused_parameters=false"),
        ("accumulation", {"train": {"micro_batch_size": 2}}, "train.micro_batch_size=8"),
        ("bound", {"strategy": {"name": "ddp"}}, "strategy.communication_hook=bf16"),
        ("slow launches", {"train": {"compile": False}}, "train.compile=true"),
    ],
)
def test_of_a_dtk_run_the_remedy_is_an_override(
    tmp_path: Path, detect: Any, name: str, config: dict[str, Any], remedy: str
) -> None:
    scenario = next(one for one in SICK if one.name == name)
    write(scenario.build(), tmp_path)
    (finding,) = (one for one in detect(tmp_path, run=run(config)).findings if one.cause == scenario.cause)
    assert [(one.kind, one.change) for one in finding.remedies] == [("override", remedy)]


def on_gloo(folder: Path, ranks: int) -> None:
    """Steps of 10 ms of compute and of an all_reduce of 38 ms beside it, on the threads of a CPU."""
    for rank in range(ranks):
        events: list[dict[str, Any]] = []
        for step in range(4):
            for cat, name, tid, start, length, args in (
                ("user_annotation", f"ProfilerStep#{step}", 1, 0, 40_000, {}),
                ("cpu_op", "aten::mm", 1, 0, 10_000, {}),
                ("user_annotation", "gloo:all_reduce", 2, 1_000, 38_000, {"Input Dims": [[1 << 20]]}),
            ):
                where = {"ph": "X", "pid": 500 + rank, "tid": tid, "ts": 1e6 + step * 40_000 + start, "dur": length}
                events.append({"cat": cat, "name": name, **where, "args": args})
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        (folder / f"rank_{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))


@pytest.mark.parametrize(("cores", "expected"), [(2, "undecided"), (4, "confirmed"), (None, "confirmed")])
def test_ranks_that_share_a_core_are_not_said_to_be_bound_by_communication(
    tmp_path: Path, detect: Any, cores: int | None, expected: str
) -> None:
    on_gloo(tmp_path, 4)
    manifest = {"topology": {"nproc": 4}, "hardware": {"cores": cores}}
    evidence = replace(run({"strategy": {"name": "ddp"}}), manifest=manifest)
    found = {one.cause: one for one in detect(tmp_path, run=evidence).findings}["overlap.communication_bound"]
    assert found.status == expected, found.summary
    assert ("4 ranks share 2 cores" in found.summary) == (cores == 2)


@pytest.mark.parametrize("name", ["TORCH_NCCL_ENABLE_TIMING", "CUDA_LAUNCH_BLOCKING"])
def test_an_instrument_in_the_environment_is_refused(tmp_path: Path, detect: Any, name: str) -> None:
    write(fsdp(units=1), tmp_path)
    detection = detect(tmp_path, environment={-1: {name: "1"}})
    assert roots(detection) == [("overlap.instrumented", (0, 1, 2, 3))]
    assert {one.status for one in detection.findings if one.cause != "overlap.instrumented"} == {"undecided"}
    assert roots(detect(tmp_path, environment={-1: {name: "0"}})) == [("overlap.root_only_wrapping", (0, 1, 2, 3))]


def test_without_a_trace_every_cause_is_undecided_and_says_what_to_record(detect: Any) -> None:
    findings = detect().findings
    assert {one.cause for one in findings} == set(CAUSES)
    assert all(one.status == "undecided" and "record=full" in one.missing for one in findings)


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
    monkeypatch.setattr(overview.os, "sched_getaffinity", lambda _: {0, 1})
    spread = detect(tmp_path)
    assert spread == replace_findings(alone)


def replace_findings(detection: Detection) -> Detection:
    return Detection([replace(one) for one in detection.findings], detection.measures)


def without_marks(folder: Path, *names: str) -> None:
    for path in folder.iterdir():
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"] = [one for one in trace["traceEvents"] if not str(one.get("name", "")).startswith(names)]
        with opened(path, "wt", encoding="utf-8") as file:
            json.dump(trace, file)


@pytest.mark.parametrize("unmarked", [("ProfilerStep",), ("ProfilerStep", "Optimizer", "optimizer")])
def test_without_marked_steps_backward_passes_are_not_taken_for_micro_batches(
    tmp_path: Path, detect: Any, unmarked: tuple[str, ...]
) -> None:
    for scenario in SCENARIOS:
        if scenario.name in ("accumulation", "ddp"):
            write(scenario.build(), tmp_path / scenario.name)
            without_marks(tmp_path / scenario.name, *unmarked)
            found = {one.cause: one for one in detect(tmp_path / scenario.name).findings}["overlap.accumulation_sync"]
            assert found.status != "confirmed"
            if scenario.name == "accumulation":
                assert found.status == "undecided"
                assert "profiler.step()" in found.missing
