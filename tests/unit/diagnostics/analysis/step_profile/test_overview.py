"""All ranks together: which files count, what a step costs, and what the measurement itself costs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from diagnostics.analysis.step_profile.breakdown import Breakdown
from diagnostics.analysis.step_profile.overview import (
    SWITCHES,
    Instrument,
    Overview,
    find_instrument,
    overview,
    read_one,
)
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, RunEvidence
from diagnostics.evidence.readers.trace import TraceFile
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import STEPS, ddp
from tests.unit.diagnostics.analysis.step_profile.profiles import rank


def evidence(folder: Path, simulator: Simulator, **more: Any) -> Evidence:
    limits = Limits()
    files = [TraceFile(path, path.name, None, limits) for path in write(simulator, folder)]
    return Evidence(folder, limits, files={"trace": files}, **more)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    return overview(evidence(tmp_path_factory.mktemp("ddp"), ddp(Simulator(ranks=2))))


def test_ranks_steps_and_what_is_known_of_waiting(view: Overview) -> None:
    assert (view.ranks, view.world_size, view.on_device, view.unusable) == ((0, 1), 2, True, "")
    assert view.split and view.skew.matched == len(view.calls) // 2
    assert view.unit == "step" and view.step_ms > 5
    assert view.typical_count(lambda profile: len(profile.calls)) == 4
    assert view.worth(view.step_ms) and not view.worth(0.01 * view.step_ms) and not view.worth(0.0)
    assert view.per_step_ms(lambda profile: 3e6 * STEPS) == {0: 3.0, 1: 3.0} and view.declared("x") is None


def test_measures_of_the_report(view: Overview) -> None:
    measures = view.measures()["overlap"]
    assert measures["steps"] == STEPS and measures["steps_marked"] and set(measures["ranks"]) == {0, 1}
    rank = measures["ranks"][0]
    parts = rank["compute_ms"] + rank["exposed_ms"] + rank["memory_ms"] + rank["idle_ms"]
    assert parts == pytest.approx(rank["wall_ms"], abs=0.001) and len(rank["steps"]) == STEPS
    assert rank["transfer_ms"] is not None and 0 <= rank["overlap_percent"] <= 100
    track = measures["timeline"]["ranks"][0]
    assert [name for name, *_ in track["regions"]] == ["forward", "backward", "after backward"]
    assert len(track["calls"]) == 4 and {name for name, *_ in track["calls"]} == {"all_reduce"}
    for name, start, end, waiting in [*track["regions"], *track["calls"], *track["idle"]]:
        assert name and 0 <= start < end <= track["length_ms"] and 0 <= waiting <= end - start + 0.001
    assert track["regions"][0][2] == track["regions"][1][1] and track["regions"][-1][2] == track["length_ms"]


def test_of_many_ranks_the_timeline_has_those_that_wait_least_and_most(view: Overview) -> None:
    profiles = [msgspec.structs.replace(view.profiles[n % 2], rank=n) for n in range(40)]
    chosen = msgspec.structs.replace(view, profiles=profiles).measures()["overlap"]["timeline"]["ranks"]
    assert len(chosen) == 16 and list(chosen) == sorted(chosen)


def test_no_trace_an_unreadable_one_and_an_instrumented_one(tmp_path: Path) -> None:
    assert overview(Evidence(tmp_path, Limits())).unusable == "no_trace"
    (tmp_path / "bad.json").write_text("{")
    broken = Evidence(tmp_path, Limits(), files={"trace": [TraceFile(tmp_path / "bad.json", "bad.json", 0, Limits())]})
    assert overview(broken).unusable == "unreadable" and broken.problems[0].unread
    blocked = evidence(tmp_path / "b", ddp(Simulator(ranks=1)), environment={-1: {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert overview(blocked).unusable == "instrumented"


def test_of_two_windows_of_one_rank_the_later_one_is_used(tmp_path: Path) -> None:
    first = evidence(tmp_path / "a", ddp(Simulator(ranks=1)))
    later = ddp(Simulator(ranks=1))
    for events in later.events:
        for event in events:
            event["ts"] += 1e6
    second = evidence(tmp_path / "b", later)
    both = Evidence(tmp_path, Limits(), files={"trace": [*first.handles(TraceFile), *second.handles(TraceFile)]})
    (only,) = overview(both).profiles
    assert both.problems[0].harmless and "second trace of rank 0" in both.problems[0].what
    begins = [overview(item).profiles[0].steps[0].start for item in (first, second)]
    assert only.steps[0].start == max(begins) > min(begins)


def test_what_cannot_be_read_is_a_text(tmp_path: Path) -> None:
    assert "No such file" in str(read_one(TraceFile(tmp_path / "none.json", "none.json", 0, Limits())))


@pytest.mark.parametrize(
    ("manifest", "crowded"),
    [
        ({"topology": {"nproc": 4}, "hardware": {"cores": 2}}, (4, 2)),
        ({"topology": {"nproc": 2}, "hardware": {"cores": 2}}, None),
        ({"topology": "two", "hardware": {"cores": 2}}, None),
        ({}, None),
    ],
)
def test_more_ranks_than_cores(manifest: dict[str, Any], crowded: tuple[int, int] | None) -> None:
    run = RunEvidence(Path(), None, {}, manifest, {}, {}, {}, {})
    view = overview(Evidence(Path(), Limits(), run=run))
    view.profiles = [rank(0, on_device=False)]
    assert view.crowded == crowded
    view.profiles = [rank(0)]
    assert view.crowded is None, "an accelerator computes"


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_a_variable_that_serialises_the_work(name: str, value: str, is_on: bool) -> None:
    instrument = find_instrument([rank(0), rank(1)], {1: {name: value}})
    assert instrument == (Instrument((1,), name, value) if is_on else None)
    everywhere = find_instrument([rank(0), rank(3)], {-1: {name: value}})
    assert (everywhere.ranks if everywhere else None) == ((0, 3) if is_on else None)


@pytest.mark.parametrize(
    ("blocking", "kernels", "idle", "expected"),
    [(1.0, 30, 100, True), (0.9, 30, 100, False), (1.0, 29, 100, False), (1.0, 30, 10, False)],
)
def test_launches_that_all_block(blocking: float, kernels: int, idle: int, expected: bool) -> None:
    blocked = {"blocking": blocking, "long_kernels": kernels, "window": Breakdown(wall=2000, idle=idle)}
    assert find_instrument([rank(0, **blocked)], {}) == (Instrument((0,)) if expected else None)
    assert find_instrument([rank(0, **blocked), rank(1)], {}) is None, "on one rank alone it is something else"


def test_a_run_on_cpu_has_no_launches() -> None:
    assert find_instrument([rank(0, on_device=False)], {-1: {"CUDA_LAUNCH_BLOCKING": "1"}}) is None


def without_device(sim: Simulator, ranks: tuple[int, ...]) -> Simulator:
    for of_rank in ranks:
        sim.events[of_rank][:] = [event for event in sim.events[of_rank] if "stream" not in event["args"]]
    return sim


def test_a_trace_without_device_events_measures_no_step(tmp_path: Path) -> None:
    """What the host did is not how the time of a step is spent; of a job on CPU it is."""
    overlap = overview(evidence(tmp_path, without_device(ddp(Simulator(ranks=2)), (0, 1)))).measures()["overlap"]
    assert overlap == {"reason": "no_device_events", "account": {"no_device_events": True}}


def test_a_rank_without_device_events_is_not_traced(tmp_path: Path) -> None:
    overlap = overview(evidence(tmp_path, without_device(ddp(Simulator(ranks=2)), (1,)))).measures()["overlap"]
    assert set(overlap["ranks"]) == {0}
    assert (overlap["account"]["traced"], overlap["account"]["world_size"]) == (1, 2)
