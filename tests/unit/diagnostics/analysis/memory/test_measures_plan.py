"""What was planned against what it was: words, and what cannot be compared is said to be so."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.analysis.memory.curve import Allocation, Curve, build, without_backend
from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.evidence.trace.memory_marks import MemoryEvent, Span, TraceMarks
from diagnostics.report.measures import plan_lines
from tests.unit.diagnostics.causes.memory.jobs import measures

GIB = 1 << 30
PLAN = {"parameters": GIB, "optimizer states": 2 * GIB, "activations": 6 * GIB}


def run_of(folder: Path, plan: object, **step: Any) -> Path:
    """A finished run whose timeline has one step."""
    paths = RunPaths(folder)
    write_json(paths.status, Status(state="finished"))
    write_json(paths.manifest, {"run_id": "r", "schema_version": 1, "world_size": 2})
    config = {"strategy": {"name": "fsdp"}, "model": {"architecture": "gpt"}, "launcher": {"nproc": 2}}
    paths.config.write_text(yaml.safe_dump(config))
    if plan is not None:
        write_json(paths.plan, plan)
    paths.memory(0).parent.mkdir()
    record = {"step": 1, "time_s": 1.0, "rss_bytes": 20 * GIB, "peak_rss_bytes": 21 * GIB, **step}
    paths.memory(0).write_text(json.dumps(record) + "\n")
    return folder


def planned(folder: Path) -> dict[str, Any]:
    return measures(folder).get("plan", {})


def stored(**parts: int) -> dict[str, Any]:
    return {"schema": "dtk.plan/1", "memory": {"at_peak_bytes": {**PLAN, **parts}}}


def test_the_allocators_peak_is_compared_with_the_planned_one(tmp_path: Path) -> None:
    result = planned(run_of(tmp_path, stored(), peak_allocated_bytes=int(14.8 * GIB), allocated_bytes=GIB))
    assert (result["planned_bytes"], result["was_bytes"]) == (9 * GIB, int(14.8 * GIB))
    assert plan_lines({"memory": {"plan": result}}) == ["planned 9 GiB, actual 14.8 GiB"]


@pytest.mark.parametrize(("gib", "text"), [(9.8, False), (10.0, True), (8.2, False), (8.0, True)])
def test_a_tenth_more_or_less_is_worth_a_line(tmp_path: Path, gib: float, text: bool) -> None:
    result = planned(run_of(tmp_path, stored(), peak_allocated_bytes=int(gib * GIB), allocated_bytes=GIB))
    assert ("differs" in result) is text


def test_the_resident_set_is_not_compared_with_tensors(tmp_path: Path) -> None:
    result = planned(run_of(tmp_path, stored()))
    assert "was_bytes" not in result
    assert result["missing"] == "tensors"
    assert plan_lines({"memory": {"plan": result}}, everything=False) == []
    (line,) = plan_lines({"memory": {"plan": result}})
    assert "that of the process does not measure it" in line


@pytest.mark.parametrize(
    "plan",
    [
        None,
        {},
        [],
        {"schema": "dtk.plan/1"},
        {"schema": "other/1", "memory": {"at_peak_bytes": {"parameters": 5}}},
        {"schema": "dtk.plan/1", "memory": {"at_peak_bytes": {"parameters": "5", "x": -1, "y": True, "z": 1 << 70}}},
        {"schema": "dtk.plan/1", "memory": {"at_peak_bytes": [1, 2]}},
    ],
)
def test_a_damaged_plan_is_none(tmp_path: Path, plan: object) -> None:
    assert planned(run_of(tmp_path, plan, peak_allocated_bytes=GIB, allocated_bytes=GIB)) == {}


def event(ts_us: float, size: int, address: int, thread: int = 1) -> MemoryEvent:
    return MemoryEvent(size, address, ts_us=ts_us, thread=thread)


def test_an_address_that_is_given_out_again_was_released() -> None:
    """gloo's threads release without telling the profiler."""
    events = [event(1, 100, 7), event(2, 50, 8), event(3, 100, 7), event(4, -100, 7)]
    curve = build(TraceMarks(events=events))
    assert curve is not None
    assert curve.peak_bytes == 150
    assert [(allocation.size_bytes, allocation.end_us) for allocation in curve.allocations] == [
        (100, 3),
        (50, None),
        (100, 4),
    ]


def test_what_gloo_allocates_inside_its_collectives_is_left_out() -> None:
    backend = [Span("c10d::allreduce_", 2, 3, 1), Span("gloo:all_gather", 5, 6, 9)]
    events = [event(1, 100, 1), event(2.5, 1000, 2), event(3.5, -1000, 2), event(5.5, 500, 3, 9), event(5.5, 20, 4)]
    curve = build(TraceMarks(backend=backend, events=events))
    assert curve is not None
    assert curve.peak_bytes == 1100
    assert [allocation.backend for allocation in curve.allocations] == [False, True, True, False]
    own = without_backend(curve)
    assert own.peak_bytes == 120
    assert [item.size_bytes for item in own.at_peak] == [100, 20]


def test_a_unit_that_is_gathered_again_has_let_go_of_its_buffer() -> None:
    def gathered(start_us: float, end_us: float | None) -> Allocation:
        return Allocation(100, start_us, 1, "gather", "FSDP::all_gather (blocks.0)", end_us, lent=True)

    curve = Curve(0, None, allocations=[gathered(1, None), gathered(5, None), gathered(9, 10)])
    assert without_backend(curve).peak_bytes == 100
