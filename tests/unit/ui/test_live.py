"""What a run's folder says about it now: of files that grow, that are damaged, that are not what they seem."""

import json
import os
import time
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from diagnostics.evidence.ring.format import FINISHED, NO_PEER, STARTED
from dtk.record.ring import Ring
from dtk.ui import live
from tests.unit.ui.folders import beat, logged, make_run


def test_of_a_step_that_was_made_again_the_last_record_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"step": 5, "loss": 9.0, "mfu": None, "note": "text", "flag": True}) + '\n{"step": 6, "lo'
        )
    drawn = live.curves(run / "metrics.jsonl")
    assert drawn["loss"] == [(1, 4.5), (2, 4.0), (3, 3.5), (4, 3.0), (5, 9.0)]
    assert drawn.keys() == {"loss", "tokens_per_s", "time_s"}, "what is no number has no curve"


def test_steps_that_a_restart_took_back_are_not_drawn(tmp_path: Path) -> None:
    rows = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2)]
    text = "".join(f'{{"attempt": {attempt}, "step": {step}, "loss": {attempt}}}\n' for attempt, step in rows)
    (tmp_path / "m").write_text(text)
    assert live.curves(tmp_path / "m")["loss"] == [(1, 0), (2, 1)]


@pytest.mark.parametrize(
    "text", ["", "[]\n7\n", '{"loss": 1}\n', '{"step": "x", "loss": 1}\n', "\0" * 100, "[" * 99_999]
)
def test_a_damaged_file_has_no_curves(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert live.curves(tmp_path / "metrics.jsonl") == {}


def test_values_that_are_no_finite_number_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n{"step": 3, "loss": 1.5}\n')
    assert live.curves(tmp_path / "m") == {"loss": [(3, 1.5)]}


def test_figures_of_hundreds_of_digits_are_none_of_a_training(tmp_path: Path) -> None:
    huge = "9" * 400
    (tmp_path / "m").write_text(
        f'{{"step": 1, "loss": {huge}}}\n{{"step": {huge}, "loss": 1}}\n{{"step": 2, "loss": 3}}\n'
    )
    assert live.curves(tmp_path / "m") == {"loss": [(2, 3)]}
    run = make_run(tmp_path, "one", "running")
    beat(run, 0, int("9" * 400), "forward")
    (rank,) = live.ranks(RunPaths(run), time.time())
    assert rank.step is None


def test_long_curves_are_thinned_and_end_with_the_newest(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    logged(run, 6, 3001)
    points = live.curves(run / "metrics.jsonl")["loss"]
    assert len(points) <= live.MOST_POINTS and points[-1][0] == 3001 and points == sorted(points)


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "one")
    logged(run, 6, 500)
    monkeypatch.setattr(live, "TAIL_BYTES", 1000)
    points = live.curves(run / "metrics.jsonl")["loss"]
    assert points[-1][0] == 500 and 5 < len(points) < 20


def test_a_pipe_in_place_of_the_metrics_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert live.curves(tmp_path / "metrics.jsonl") == {}


def test_ranks_in_order_with_the_age_of_their_heartbeats(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", "running")
    beat(run, 2, 7, "forward", 40)
    beat(run, 0, None, None)
    (run / "heartbeat" / "rank_00001.json").write_text('{"beat": 1')
    (run / "heartbeat" / "notes.json").write_text("{}")
    first, second = live.ranks(RunPaths(run), time.time())
    assert (first.rank, first.step, first.region) == (0, None, "") and first.quiet_s < 5
    assert (second.rank, second.step, second.region) == (2, 7, "forward") and 39 < second.quiet_s < 50


def test_the_collective_that_a_rank_is_inside(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", "running")
    (run / "flight").mkdir()
    beat(run, 0, 7, "backward")
    ring = Ring(run / "flight" / "rank_00000.ring", 0, 2, 0)
    ring.start()
    group = ring.add_group("0", (0, 1), "default_pg", 0)
    assert group is not None
    texts = (ring.text("train.py:12\tstep"), 0, ring.text("all_reduce"), 0, ring.text("float32"))
    sizes = (ring.text("[[8]]"), 0, 0, 0)
    number = ring.begin((group, 1, STARTED, 7), texts, sizes, (NO_PEER, 0, 8, 8, 1), False, False)
    (rank,) = live.ranks(RunPaths(run), time.time() + 3)
    assert "all_reduce" in rank.call and "for 3" in rank.call and rank.call.endswith("train.py:12"), rank.call
    (ended,) = live.ranks(RunPaths(run), time.time() + 3, live=False)
    assert "all_reduce" in ended.call and " for " not in ended.call, "nobody waits in a run that has ended"
    ring.end(number, group, 1, FINISHED, False)
    (rank,) = live.ranks(RunPaths(run), time.time())
    assert rank.call == ""
    ring.close()
    (run / "flight" / "rank_00000.ring").write_bytes(b"dtk-ring")
    assert live.ranks(RunPaths(run), time.time())[0].call == ""


def test_traces_are_unread_until_a_report_is_newer(tmp_path: Path) -> None:
    run = RunPaths(make_run(tmp_path, "one"))
    assert live.unread_ns(run) == 0
    for name in ("traces/rank_00000.json.gz", "report/report.json"):
        (run.root / name).parent.mkdir()
    trace = run.root / "traces" / "rank_00000.json.gz"
    trace.write_bytes(b"")
    assert live.unread_ns(run) == trace.stat().st_mtime_ns
    (run.root / "report" / "report.json").write_text("{}")
    os.utime(trace, ns=(1, 1))
    assert live.unread_ns(run) == 0


def test_of_many_ranks_the_rings_of_those_furthest_behind_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, "one", "running")
    for rank in range(live.RINGS + 20):
        beat(run, rank, 8 if rank == 79 else 9, "backward", 60 if rank == 78 else 0)
    read: list[int] = []
    monkeypatch.setattr(live, "_call", lambda _, rank, __: read.append(rank) or f"call of {rank}")
    present = live.ranks(RunPaths(run), time.time())
    assert read[:2] == [79, 78] and len(read) == live.RINGS
    assert [rank.call for rank in present[78:80]] == ["call of 78", "call of 79"] and [r.rank for r in present] == [
        *range(84)
    ]
