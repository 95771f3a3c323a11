"""Why a device stood idle: the data loader, a wait of the host, late launches, pauses, or another stream."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import classify
from diagnostics.analysis.step_profile.gaps import DEVICE_NS, Gap, find_gaps
from diagnostics.analysis.step_profile.phases import window
from diagnostics.evidence.trace.model import Trace
from tests.trace_generator import Simulator
from tests.trace_scenarios import LOADER
from tests.trace_simulator import AUTOGRAD, MAIN
from tests.unit.diagnostics.analysis.step_profile.profiles import profiled, traces


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
        ({"mark": "my own work"}, "pause", ""),
        ({"op": "aten::sort"}, "pause", ""),
        ({"call": "cudaGraphInstantiate"}, "pause", ""),
        ({"function": "torch/profiler/profiler.py(803): step"}, "profiler", "profiler"),
        ({}, "pause", ""),
    ],
)
def test_what_the_host_does_meanwhile_is_the_reason(
    tmp_path: Path, host: dict[str, str], reason: str, work: str
) -> None:
    gap = paused(tmp_path, **host)
    assert (gap.reason, gap.work) == (reason, work) and gap.length > 4_000_000
    assert gap.detail == "".join(host.values())


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


@pytest.mark.parametrize(
    ("kind", "returned_after", "reason"),
    [
        ("DtoH (Device -> Pageable)", True, "sync"),
        ("DtoH (Device -> Pageable)", False, "host"),
        ("DtoH (Device -> Pinned)", True, "host"),
        ("HtoD (Pageable -> Device)", True, "host"),
    ],
)
def test_reading_into_pageable_memory_is_a_wait(tmp_path: Path, kind: str, returned_after: bool, reason: str) -> None:
    """`.cpu()` and `.item()` wait inside `cudaMemcpyAsync`; the synchronization after it finds all done."""
    sim = Simulator(ranks=1)
    sim.kernel(3000.0)
    sim.copy(50.0, 4, kind)
    if returned_after:
        sim._block(0, sim.clocks[0].compute)
    else:
        busy(sim, 3000.0, every=100.0)
    busy(sim, 300.0, every=100.0)
    sim.kernel(100.0)
    gap = max(gaps(tmp_path, sim)[0], key=lambda gap: gap.length)
    assert gap.reason == reason and gap.length > 250_000
    assert gap.detail == (f"Memcpy {kind}" if reason == "sync" else "")


def test_a_wait_costs_at_most_as_long_as_it_took(tmp_path: Path) -> None:
    """The host reads a value that is ready almost at once, and then works for 12 ms by itself."""
    sim = Simulator(ranks=1)
    sim.kernel(30.0)
    sim.drain("aten::item")
    busy(sim, 12_000.0, every=100.0)
    sim.kernel(100.0)
    result, _ = gaps(tmp_path, sim)
    by_reason = {reason: sum(gap.length for gap in result if gap.reason == reason) for reason in ("sync", "host")}
    assert 0 < by_reason["sync"] < 40_000 and by_reason["host"] > 11_900_000


def test_after_a_wait_a_host_that_runs_nothing_pauses(tmp_path: Path) -> None:
    """A server reads its answer and waits for a request; of one that is only slow to go on, the wait is the reason."""
    for rest_us, reason in ((5000.0, "pause"), (300.0, "sync")):
        sim = Simulator(ranks=1)
        sim.kernel(20_000.0)
        sim.drain("aten::item")
        sim.host(rest_us)
        sim.kernel(100.0)
        (gap,) = gaps(tmp_path / reason, sim)[0]
        assert gap.reason == reason and gap.length > 1000 * rest_us


def test_only_the_first_launch_of_a_kernel_loads_it(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    for launch_us in (5000.0, 8.0, 5000.0):
        sim.launch_us = launch_us
        sim.kernel(20.0)
    result, _ = gaps(tmp_path, sim)
    assert [gap.work for gap in result if gap.detail == "kernel_launch"] == [""]


def test_work_without_stretches_in_between_has_no_gap(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    for _ in range(5):
        sim.kernel(300.0)
    assert gaps(tmp_path, sim)[0] == []


def busy(sim: Simulator, duration: float, every: float) -> None:
    """Let the host run short operations and calls without any work for the device."""
    for _ in range(round(duration / every)):
        sim.host(every / 4, op="aten::empty")
        sim.host(every / 4, call="cudaEventQuery")
        sim.host(every / 2)


@pytest.mark.parametrize("gap_us", [1_500.0, 10_000.0, 300_000.0])
@pytest.mark.parametrize("count", [1, 10])
def test_what_the_host_does_decides_and_not_the_number_of_stretches(tmp_path: Path, gap_us: float, count: int) -> None:
    """The threads that launch run nothing (a server waits for requests), or one operation after the other."""
    for reason in ("pause", "host"):
        sim = Simulator(ranks=1)
        for _ in range(count):
            sim.kernel(100.0)
            if reason == "host":
                busy(sim, gap_us, every=100.0)
            else:
                sim.host(gap_us)
        sim.kernel(100.0)
        result, _ = gaps(tmp_path / reason, sim)
        assert [gap.reason for gap in result if gap.length > 1_000_000] == [reason] * count


def test_another_thread_that_launches_is_the_host_too(tmp_path: Path) -> None:
    """The main thread prepares what autograd's thread then launches; a thread that launches nothing does not count."""
    for thread, reason in ((MAIN, "host"), (99, "pause")):
        sim = Simulator(ranks=1)
        sim.kernel(100.0)
        sim.thread = thread
        busy(sim, 10_000.0, every=100.0)
        sim.thread = AUTOGRAD
        sim.kernel(100.0)
        result, _ = gaps(tmp_path / reason, sim)
        assert max(result, key=lambda gap: gap.length).reason == reason


@pytest.mark.parametrize(
    "name", ["Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Lazy Function Loading"]
)
@pytest.mark.parametrize("within_launch", [False, True])
def test_the_work_of_the_profiler_is_no_pause_of_the_program(tmp_path: Path, name: str, within_launch: bool) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    start = sim.clocks[0].host
    if within_launch:
        sim.launch_us = 9000.0
    else:
        sim.host(5000.0)
    sim.kernel(100.0)
    where = {"pid": -1, "tid": 0, "ts": start + 200.0, "dur": 4500.0, "args": {}}
    sim.events[0].append({"ph": "X", "cat": "overhead", "name": name, **where})
    gap = max(gaps(tmp_path, sim)[0], key=lambda gap: gap.length)
    work = {"Command Buffer Full": "", "Lazy Function Loading": "kernel_loading"}.get(name, "profiler")
    assert (gap.reason, gap.work) == ("profiler" if work == "profiler" else "pause", work)


def test_a_flush_beside_a_busy_host_or_a_loader_is_not_the_reason(tmp_path: Path) -> None:
    for reason in ("host", "data"):
        sim = Simulator(ranks=1)
        sim.kernel(100.0)
        where = {"pid": -1, "tid": 0, "ts": sim.clocks[0].host + 100.0, "dur": 9000.0, "args": {}}
        sim.events[0].append({"ph": "X", "cat": "overhead", "name": "Buffer Flush", **where})
        if reason == "host":
            busy(sim, 10_000.0, every=100.0)
        else:
            sim.host(10_000.0, LOADER)
        sim.kernel(100.0)
        result, _ = gaps(tmp_path / reason, sim)
        assert max(result, key=lambda gap: gap.length).reason == reason


def test_an_annotation_of_the_same_name_is_not_the_profiler(tmp_path: Path) -> None:
    assert paused(tmp_path, mark="Buffer Flush").reason == "pause"


@pytest.mark.parametrize("what", [{"function": "queue.py(154): get"}, {"op": "aten::sort"}, {"mark": "upload"}])
@pytest.mark.parametrize("is_last", [False, True])
def test_what_a_thread_does_that_launches_nothing_is_no_name(
    tmp_path: Path, what: dict[str, str], is_last: bool
) -> None:
    """Also not behind the last work of a marked step."""
    for thread in (99, MAIN):
        sim = Simulator(ranks=1)
        with sim.marked("ProfilerStep#1"):
            sim.kernel(100.0)
            sim.thread = thread
            sim.host(300_000.0, **what)
            sim.thread = MAIN
            if not is_last:
                sim.kernel(100.0)
        (own,) = profiled(sim, tmp_path / f"{thread}")
        gap = max(own.gaps, key=lambda gap: gap.length)
        assert gap.reason == "pause" and (gap.detail in what.values()) == (thread == MAIN)
