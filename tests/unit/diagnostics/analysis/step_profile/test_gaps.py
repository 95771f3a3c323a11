"""Why a device stood idle: the data loader, a wait of the host, late launches, pauses, or another stream."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import classify
from diagnostics.analysis.step_profile.gaps import DEVICE_NS, PAUSE_NS, Gap, find_gaps, mark_pauses
from diagnostics.analysis.step_profile.phases import window
from diagnostics.evidence.trace.model import Trace
from tests.trace_generator import Simulator
from tests.trace_scenarios import LOADER
from tests.unit.diagnostics.analysis.step_profile.profiles import traces


def gaps(folder: Path, simulator: Simulator) -> tuple[list[Gap], Trace]:
    trace = traces(simulator, folder)[0]
    work = classify(trace)
    return find_gaps(trace, work, Covers(work), *window(trace, work)), trace


def paused(folder: Path, **host: Any) -> Gap:
    """Two kernels, and between them the host does something for 5 ms."""
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    sim.host(5000.0, **host)
    sim.kernel(100.0)
    result, _ = gaps(folder, sim)
    return max(result, key=lambda gap: gap.length)


@pytest.mark.parametrize(
    ("host", "reason", "work"),
    [
        ({"mark": LOADER}, "data", ""),
        ({"mark": "Python GC"}, "pause", "garbage_collection"),
        ({"mark": "save_checkpoint"}, "pause", "checkpoint"),
        ({"mark": "my own work"}, "host", ""),
        ({}, "host", ""),
    ],
)
def test_what_the_host_does_meanwhile_is_the_reason(
    tmp_path: Path, host: dict[str, str], reason: str, work: str
) -> None:
    gap = paused(tmp_path, **host)
    assert (gap.reason, gap.work) == (reason, work) and gap.length > 4_000_000
    assert bool(gap.detail) == (reason not in ("host", "wait"))


def test_a_launch_under_way_as_the_device_runs_dry_is_late(tmp_path: Path) -> None:
    sim = Simulator(ranks=1, launch_us=10.0)
    for _ in range(50):
        sim.kernel(6.0)  # Shorter than the time from its launch to its start.
    result, _ = gaps(tmp_path, sim)
    assert len(result) == 49 and {gap.reason for gap in result} == {"host"}


def test_a_wait_for_the_device_that_ended_in_the_stretch(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(3000.0)
    sim.drain("aten::item")
    sim.kernel(100.0)
    result, _ = gaps(tmp_path, sim)
    assert [(gap.reason, gap.detail) for gap in result if gap.length > 5 * DEVICE_NS][:1] == [("sync", "aten::item")]


def test_a_wait_costs_at_most_as_long_as_it_took(tmp_path: Path) -> None:
    """The host reads a value that is ready almost at once, and then works for 12 ms by itself."""
    sim = Simulator(ranks=1)
    sim.kernel(30.0)
    sim.drain("aten::item")
    sim.host(12_000.0)
    sim.kernel(100.0)
    result, _ = gaps(tmp_path, sim)
    by_reason = {reason: sum(gap.length for gap in result if gap.reason == reason) for reason in ("sync", "host")}
    assert 0 < by_reason["sync"] < 40_000 and by_reason["host"] > 11_900_000


def test_only_the_first_launch_of_a_kernel_loads_it(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    for launch_us in (5000.0, 8.0, 5000.0):
        sim.launch_us = launch_us
        sim.kernel(20.0)
    result, _ = gaps(tmp_path, sim)
    assert [gap.work for gap in result if gap.reason == "pause"] == [""]


def test_work_without_stretches_in_between_has_no_gap(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    for _ in range(5):
        sim.kernel(300.0)
    assert gaps(tmp_path, sim)[0] == []


def test_a_few_long_stretches_are_pauses_and_many_short_ones_are_late_launches() -> None:
    trace = Trace("t", names=["my own work"])
    long = [Gap(at, at + 2 * PAUSE_NS, "host") for at in (0, 10 * PAUSE_NS)]
    trace.marks.add(0, 2 * PAUSE_NS, 0, 0)
    mark_pauses(long, trace)
    assert [(gap.reason, gap.detail) for gap in long] == [("pause", "my own work"), ("pause", "")]
    many = [Gap(at * PAUSE_NS, at * PAUSE_NS + PAUSE_NS // 20, "host") for at in range(200)]
    mark_pauses(many, trace)
    assert {gap.reason for gap in many} == {"host"}
    near = [Gap(at * PAUSE_NS, at * PAUSE_NS + PAUSE_NS // 4, "host") for at in range(200)]
    mark_pauses(few := [*near, Gap(900 * PAUSE_NS, 901 * PAUSE_NS, "host")], trace)
    assert {gap.reason for gap in few} == {"host"}, "the long one holds a small share and is not far longer"


def test_a_stretch_far_longer_than_all_others_is_a_pause_although_the_others_hold_more_time() -> None:
    launches = [Gap(at * PAUSE_NS, at * PAUSE_NS + PAUSE_NS // 3, "host") for at in range(60)]
    stop = Gap(900 * PAUSE_NS, 910 * PAUSE_NS, "host")
    mark_pauses([*launches, stop], Trace("t"))
    assert stop.reason == "pause" and {gap.reason for gap in launches} == {"host"}


def test_other_reasons_stay_as_they_are() -> None:
    gaps = [Gap(0, 9 * PAUSE_NS, "data"), Gap(20 * PAUSE_NS, 22 * PAUSE_NS, "host")]
    mark_pauses(gaps, Trace("t"))
    assert [gap.reason for gap in gaps] == ["data", "pause"]
