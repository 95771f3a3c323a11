"""Ranks that others wait for in init_process_group: a verdict only where they are here and stand still."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.launch.watched import missing_ranks

LIMIT_S = 30.0


def write(paths: RunPaths, rank: int, state: str, ago_s: float = 60.0, attempt: int = 0, **more: Any) -> None:
    """Write what a rank tells of its start: since `ago_s` in that state, and not moving."""
    now_s = time.time()
    record = {
        "dtk_start": 1,
        "rank": rank,
        "world_size": 4,
        "state": state,
        "since_s": now_s - ago_s,
        "alive_s": now_s,
        "worked_s": now_s - ago_s,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "frames": [["/home/me/train.py", 12, "load"], ["/home/me/train.py", 40, "<module>"]],
        **more,
    }
    path = paths.start(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record), encoding="utf-8")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Make the records of three ranks that wait for a fourth."""
    paths = RunPaths(tmp_path)
    for rank in (0, 1, 3):
        write(paths, rank, "meets")
    write(paths, 2, "started")
    return paths


def test_the_rank_that_stands_still_is_blamed_with_its_place(paths: RunPaths) -> None:
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None
    assert (verdict.culprits, verdict.victims, verdict.attempt, verdict.kind) == ([2], [0, 1, 3], 0, "stall")
    assert verdict.reason.endswith("for rank 2, which made no progress at train.py:12 in load")
    assert "waited in init_process_group for 60 s" in verdict.reason


@pytest.mark.parametrize(
    "change",
    [
        {"worked_s": time.time() + 1e6},  # It computes, reads or imports.
        {"alive_s": 1.0, "worked_s": 0.0},  # It told nothing for long: gone, or native code holds Python's lock.
        {"pid": 2**22 + 1},  # Its process is gone.
        {"pid": None},
        {"pid": 10**30},
        {"host": "another-node"},
    ],
)
def test_without_proof_that_it_stands_still_here_nothing_is_said(paths: RunPaths, change: dict[str, Any]) -> None:
    write(paths, 2, "started", **change)
    assert missing_ranks(paths, LIMIT_S) is None


def test_all_missing_ranks_of_this_node_must_stand_still(paths: RunPaths) -> None:
    write(paths, 3, "started", worked_s=time.time() + 1e6)
    assert missing_ranks(paths, LIMIT_S) is None
    write(paths, 3, "started")
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and verdict.culprits == [2, 3]


def test_a_rank_of_another_node_may_wait_too(paths: RunPaths) -> None:
    for rank in (0, 1, 3):
        write(paths, rank, "meets", host="another-node", pid=1)
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and verdict.culprits == [2]


def test_before_the_limit_and_after_a_meeting_nothing_is_said(paths: RunPaths) -> None:
    assert missing_ranks(paths, 100.0) is None
    write(paths, 1, "meets", ago_s=1.0)
    assert missing_ranks(paths, LIMIT_S) is None, "the last to come has not waited for long"
    write(paths, 1, "met")
    assert missing_ranks(paths, LIMIT_S) is None


def test_only_the_last_attempt_counts(paths: RunPaths) -> None:
    write(paths, 0, "meets", attempt=10)
    assert missing_ranks(paths, LIMIT_S) is None
    write(paths, 1, "started", attempt=10)
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and (verdict.attempt, verdict.culprits) == (10, [1])


def test_without_frames_the_place_is_unknown(paths: RunPaths) -> None:
    write(paths, 2, "started", frames=[])
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and verdict.reason.endswith("made no progress at an unknown place")


def test_a_file_that_is_being_written_is_left_out(paths: RunPaths, tmp_path: Path) -> None:
    paths.start(0, 1).write_text('{"dtk_start": 1, "ra', encoding="utf-8")
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and verdict.victims == [0, 3]
    assert missing_ranks(RunPaths(tmp_path / "none"), LIMIT_S) is None


def test_ranks_that_all_stand_still_before_they_meet(paths: RunPaths) -> None:
    frames = [["/site-packages/torch/utils/file_baton.py", 50, "wait"], ["/home/me/train.py", 4, "main"]]
    for rank in range(3):
        write(paths, rank, "started", frames=frames)
    write(paths, 3, "started", worked_s=time.time(), frames=frames)
    assert missing_ranks(paths, LIMIT_S) is None, "one still works, on whichever host"
    write(paths, 3, "started", frames=frames, host="another-node", pid=1)
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and (verdict.culprits, verdict.victims) == ([], [0, 1, 2, 3])
    assert verdict.reason.startswith("no rank reached init_process_group: ranks 0-3 made no progress for 60 s at")
    paths.start(0, 3).unlink()
    assert missing_ranks(paths, LIMIT_S) is None, "a rank of another node may be at work"


def test_a_start_that_all_ranks_reached_and_none_completes_is_ended(paths: RunPaths) -> None:
    """As after a restart of torchrun in which the ranks read addresses of the attempt before."""
    write(paths, 2, "meets")
    verdict = missing_ranks(paths, LIMIT_S)
    assert verdict is not None and (verdict.culprits, verdict.victims) == ([], [0, 1, 2, 3])
    assert verdict.reason.startswith("all 4 ranks waited in init_process_group for 60 s")
    write(paths, 2, "meets", worked_s=time.time())
    assert missing_ranks(paths, LIMIT_S) is None, "one of them works"
