import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import LATE, ddp
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, roots, scenario, status


def test_one_rank_alone_makes_no_claim_about_others(tmp_path: Path, detect: Any) -> None:
    paths = write(scenario("longer_compute").build(), tmp_path)
    for rank in (0, LATE):
        detection = detect(paths[rank])
        by_cause = {finding.cause: finding for finding in detection.findings}
        assert by_cause["overlap.skew"].status == "undecided"
        assert "only one rank" in text_of(by_cause["overlap.skew"]).summary
        assert text_of(by_cause["overlap.skew"]).missing
        assert not [
            finding
            for finding in detection.findings
            if finding.status == "confirmed" and finding.ranks and finding.ranks != (rank,)
        ]


def test_a_rank_that_was_not_traced_may_be_the_late_one(tmp_path: Path, detect: Any) -> None:
    paths = write(scenario("longer_compute").build(), tmp_path)
    assert status(detect(*paths[:LATE]))["overlap.skew"] == "undecided"


def test_several_late_ranks_are_all_named(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(ranks=6), scale=lambda rank: 1.4 if rank in (1, 4) else 1.0), tmp_path)
    (finding,) = (item for item in detect(tmp_path).findings if item.cause == "overlap.skew")
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (1, 4), (0, 2, 3, 5))
    assert "compute takes longer" in text_of(finding).summary


def test_skew_costs_what_the_late_rank_adds(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), scale=lambda rank: 1.4 if rank == LATE else 1.0), tmp_path / "late")
    write(ddp(Simulator()), tmp_path / "even")
    late, even = detect(tmp_path / "late"), detect(tmp_path / "even")
    (finding,) = (item for item in late.findings if item.cause == "overlap.skew")
    saved = late.measures["overlap"]["step_ms"] - even.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.05)


def test_ranks_that_are_late_in_turn_are_blamed_together(tmp_path: Path, detect: Any) -> None:
    """None of them is late in most collectives, and together they are: all three are blamed, nobody else."""
    sim = Simulator(ranks=8)
    turn = [0]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == (0, 3, 6)[turn[0] % 3] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks) == ("confirmed", (0, 3, 6))
    assert text_of(finding).summary.startswith("Ranks 0, 3 and 6 arrive late")


def test_lateness_that_wanders_over_all_ranks_blames_nobody(tmp_path: Path, detect: Any) -> None:
    sim = Simulator(ranks=3)
    turn = [-1]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == turn[0] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), (0, 1, 2))


def test_a_rank_that_is_late_less_than_the_latest_is_blamed_with_it(tmp_path: Path, detect: Any) -> None:
    """Rank 0 brings about two thirds of the lateness and rank 6 the rest."""
    sim = Simulator(ranks=8)
    turn = [0]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == (0, 6, 0)[turn[0] % 3] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks) == ("confirmed", (0, 6))
    assert "work imbalance" in text_of(finding).summary


@pytest.mark.parametrize(("stops_ms", "first_ms", "expected"), [(60, 0, True), (0, 0, False), (60, 40, False)])
def test_a_rank_that_stops_on_cpu_may_have_stopped_before_the_recording(
    tmp_path: Path, detect: Any, stops_ms: int, first_ms: int, expected: bool
) -> None:
    """Rank 1 stops at the end of each step, so rank 0 waits in the next; `first_ms` is work before the first call."""
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for step in range(4):
            work_ms = 30 + (first_ms if rank and not step else 0)
            call_ms = 5 if rank else 5 + stops_ms
            ends_ms = 95 - (stops_ms if rank else 0)
            for kind, name, thread, at_ms, length_ms in (
                ("user_annotation", f"ProfilerStep#{step}", 1, 0, 100),
                ("cpu_op", "aten::mm", 1, 0, work_ms),
                ("user_annotation", "gloo:all_reduce", 2, 95 - stops_ms - call_ms if rank else 30, call_ms),
                ("cpu_op", "aten::mm", 1, ends_ms - 5, 5),
            ):
                times = {"ts": 100_000 * step + 1000 * at_ms, "dur": 1000 * length_ms}
                events.append({"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, **times, "args": {}})
        header = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**header, "traceEvents": events}))
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert finding.status == ("confirmed" if expected else "ruled_out"), text_of(finding).summary
    assert not expected or (finding.ranks, finding.victims) == ((1,), (0,))


def test_hosts_that_launch_late_are_why_the_group_waits(tmp_path: Path, detect: Any) -> None:
    """Ranks 0 and 6 are limited by their hosts; the six others wait for them, and that is a consequence."""
    sim = Simulator(ranks=8, launch_us=lambda rank: 900.0 if rank in (0, 6) else 8.0)
    write(ddp(sim, transfer=1500.0), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [("overlap.host_bound", (0, 6))]
    assert finding_of(detection, "overlap.host_bound").victims == (1, 2, 3, 4, 5, 7)
    skew = finding_of(detection, "overlap.skew")
    assert (skew.status, skew.ranks) == ("confirmed", (0, 6))
    assert "launches work late" in text_of(skew).summary


@pytest.mark.parametrize(
    ("pieces", "piece_ms", "culprits"),
    [(4, 10, (1,)), (1, 40, ())],
    ids=["other_work", "fewer_cores"],
)
def test_on_cpu_more_operations_are_other_work_and_longer_ones_may_be_fewer_cores(
    tmp_path: Path, detect: Any, pieces: int, piece_ms: float, culprits: tuple[int, ...]
) -> None:
    """Rank 1 computes for 40 ms a step: four times the operations of rank 0, or as many that take longer."""
    paths = []
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for step in range(3):
            begin = 1e6 + step * 60_000
            count, length = (pieces, piece_ms) if rank else (1, 10)
            work = [("aten::mm", 1, begin + n * length * 1e3, length * 1e3) for n in range(count)]
            wait = begin + count * length * 1e3 + 500
            rows = [
                *work,
                ("gloo:all_reduce", 2, wait, begin + 50_000 - wait),
                ("aten::add_", 1, begin + 51_000, 5_000),
            ]
            rows.append((f"ProfilerStep#{step}", 1, begin, 60_000))
            for name, thread, start, length_us in rows:
                cat = "cpu_op" if name.startswith("aten") else "user_annotation"
                where = {"ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": length_us}
                size = {"Input Dims": [[1 << 20]]} if cat == "user_annotation" and thread > 1 else {}
                events.append({"cat": cat, "name": name, "args": size, **where})
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        paths.append(tmp_path / f"rank_{rank}.json")
        paths[-1].write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    finding = finding_of(detect(*paths), "overlap.skew")
    assert (finding.status, finding.ranks) == (("confirmed", culprits) if culprits else ("ruled_out", ())), text_of(
        finding
    ).summary
