"""The memory part of a report: every rank's peak, curve and categories, the highest peaks among them."""

from typing import Any

import pytest

from diagnostics.analysis.memory import measures as module
from diagnostics.analysis.memory.curve import build
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.measures import MeasuredJob, measures
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.timeline import DeviceSamples, StepMemory, Timeline
from tests.unit.diagnostics.analysis.memory.marks import MIB, training


def job(ranks: list[RankMemory], **more: Any) -> JobMemory:
    evidence = Evidence(root=None, limits=Limits())  # type: ignore[arg-type]
    return JobMemory(evidence, ModelSize(len(ranks), ""), {rank.rank: rank for rank in ranks}, **more)


def stepped(rank: int, peak_mib: int) -> RankMemory:
    size = peak_mib * MIB
    step = StepMemory(1, 0.0, None, peak_allocated_bytes=size, allocated_bytes=size, reserved_bytes=size)
    return RankMemory(rank, timeline=Timeline([step]), timeline_file=f"rank_{rank}.jsonl")


def traced(rank: int) -> RankMemory:
    return RankMemory(rank, trace_file="trace.json", curve=build(training().marks))


def test_a_rank_with_recorded_allocations() -> None:
    rank = measures(job([traced(0)]))["ranks"]["0"]
    assert rank["peak_bytes"] == 160 * MIB == sum(rank["categories"].values())
    assert (rank["peak_step"], rank["peak_region"]) == (0, "backward")
    over_time = rank["over_time"]
    assert over_time["peak"]["bytes"] == 160 * MIB and over_time["unit"] == "s"
    assert all(len(row) == 1 + len(over_time["kinds"]) for row in over_time["rows"])
    assert max(size for _, size in rank["curve"]) == 160 * MIB


def test_the_highest_peaks_are_shown_however_many_ranks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RANKS", 3)
    monkeypatch.setattr(module, "MAX_STACKED", 1)
    ranks = measures(job([stepped(rank, rank + 1) for rank in range(6)]))["ranks"]
    assert list(ranks) == ["3", "4", "5"]
    assert [name for name, value in ranks.items() if "over_time" in value] == ["5"]


def test_where_no_rank_left_anything_telemetry_tells_of_the_processes() -> None:
    node = Timeline([], host_used=[(0.0, 1)], rank_rss={0: [(0.0, 5 * MIB), (1.0, 9 * MIB)], 1: [(0.0, MIB)]})
    ranks = measures(job([], nodes={0: node}))["ranks"]
    assert list(ranks) == ["0", "1"] and ranks["0"]["curve_of"] == "process"
    assert ranks["0"]["over_time"]["peak"]["bytes"] == 9 * MIB and "peak_bytes" not in ranks["0"]


def test_the_capacity_of_a_rank_is_that_of_its_own_message_else_of_devices_that_agree() -> None:
    item = EvidenceItem("log", "a.log", "text", 1)
    message = RanOut(0, "cuda", item, total_bytes=80 * MIB)
    nodes = {0: Timeline([], devices={"a": DeviceSamples(total_bytes=90 * MIB)})}

    def capacity(**more: Any) -> int | None:
        over_time: dict[str, Any] = measures(job([traced(0)], **more))["ranks"]["0"]["over_time"]
        return over_time["capacity_bytes"]

    assert capacity(ran_out=[message], nodes=nodes) == 80 * MIB
    assert capacity(nodes=nodes) == 90 * MIB and capacity() is None
    nodes[1] = Timeline([], devices={"b": DeviceSamples(total_bytes=40 * MIB)})
    assert capacity(nodes=nodes) is None, "the devices differ"


def test_nothing_recorded_is_no_part_of_the_report() -> None:
    empty = job([])
    measured = MeasuredJob(empty.evidence, empty.size)
    assert measured.measures() == {}
