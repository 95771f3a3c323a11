"""Ranks that went away, of which only a ring is left: what they did last, and no health where nothing is known."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError
from diagnostics.evidence.ring.format import FINISHED, RAISED, STARTED
from tests.unit.diagnostics.hang.dumps import Shown, detect
from tests.unit.diagnostics.hang.rings import write_ring

DONE = [FINISHED] * 3
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:14249"


def job(folder: Path, hosts: tuple[str, str] = ("node-1", "node-1"), **more: object) -> dict[str, Shown]:
    """Rank 1 made three calls and is gone; rank 0's fourth raised."""
    rings = [
        write_ring(folder / f"rank_{rank:05d}.ring", rank, 2, [*DONE, RAISED] if rank == 0 else DONE, 5 + rank, host)
        for rank, host in enumerate(hosts)
    ]
    findings = detect(Evidence(folder, Limits(), files={"ring": rings}, **more))  # type: ignore[arg-type]
    return {finding.cause.removeprefix("hang."): finding for finding in findings}


def lost(rank: int = 0) -> RankError:
    frames = (Frame("/job/train.py", 5, "train"),)
    return RankError(rank, "0/stderr.log", 1, "RuntimeError", CLOSED, frames, exit_code=1)


def launcher() -> list[LogFact]:
    """What torchrun prints where rank 0 alone failed and nothing had to be stopped."""
    return [
        LogFact("gloo_closed", 0, "out.log", 3, CLOSED),
        LogFact("torchrun_failed", None, "out.log", 9, "failed (exitcode: 1)", {"pid": 100}),
        LogFact("torchrun_list", None, "out.log", 20, "torchrun lists", {"ranks": [0], "pids": [100]}),
    ]


def test_one_of_two_that_left_with_exit_code_0(tmp_path: Path) -> None:
    findings = job(tmp_path, errors=[lost()], facts=launcher())
    assert [cause for cause, finding in findings.items() if finding.status == "confirmed"] == ["rank_exited"]
    rank_exited = findings["rank_exited"]
    assert (rank_exited.ranks, rank_exited.victims) == ((1,), (0,))
    assert rank_exited.summary == (
        "Rank 1 exited normally with exit code 0 after all_reduce [8] float32 SUM (#3, train.py:6) while others still "
        "waited. Rank 0 waited for it at train.py:5."
    )
    assert [(place.rank, place.line) for place in rank_exited.where] == [(1, 6), (0, 5)]


def test_a_rank_of_another_machine_is_not_said_to_have_ended_in_order(tmp_path: Path) -> None:
    """That machine's launcher may tell of a signal."""
    findings = job(tmp_path, ("node-1", "node-2"), errors=[lost()], facts=launcher())
    assert not [finding for finding in findings.values() if finding.status == "confirmed"]


def test_without_the_launchers_word_the_end_stays_open(tmp_path: Path) -> None:
    findings = job(tmp_path, errors=[lost()])
    assert not [finding for finding in findings.values() if finding.status == "confirmed"]
    for cause in ("rank_exited", "rank_killed", "rank_raised", "rank_oom", "uneven_iterations"):
        assert findings[cause].status == "undecided", cause
    assert "Rank 1 vanished after all_reduce [8] float32 SUM (#3, train.py:6)" in findings["rank_exited"].summary


@pytest.mark.parametrize(
    ("end", "cause", "words"),
    [
        (RankError(1, "log", 3, "", "", signal="SIGKILL", exit_code=-9), "rank_killed", "was killed by SIGKILL after"),
        (
            RankError(1, "log", 3, "", "", exit_code=7),
            "rank_exited",
            "ended with exit code 7 without a traceback after",
        ),
    ],
)
def test_the_last_call_of_a_rank_that_left_no_trace(tmp_path: Path, end: RankError, cause: str, words: str) -> None:
    finding = job(tmp_path, errors=[lost(), end])[cause]
    assert (finding.status, finding.ranks) == ("confirmed", (1,))
    assert f"{words} all_reduce [8] float32 SUM (#3, train.py:6)" in finding.summary
    assert [(place.rank, place.line) for place in finding.where] == [(1, 6), (0, 5)]
    assert "place in its log" not in finding.remedies[0].change


def test_a_fault_of_the_program_itself_was_sent_by_nobody(tmp_path: Path) -> None:
    end = RankError(1, "log", 3, "", "", (Frame("/job/native.py", 9, "call"),), signal="SIGSEGV", exit_code=-11)
    change = job(tmp_path, errors=[lost(), end])["rank_killed"].remedies[0].change
    assert "/job/native.py:9" in change and "who sent" not in change


@pytest.mark.parametrize("last", [[FINISHED, RAISED], [FINISHED, STARTED], [FINISHED]])
def test_rings_alone_show_no_health(tmp_path: Path, last: list[int]) -> None:
    write_ring(tmp_path / "rank_00000.ring", 0, 2, [*DONE, *last])
    write_ring(tmp_path / "rank_00001.ring", 1, 2, DONE)
    assert diagnose(tmp_path).outcome == "undecided"
    write_ring(tmp_path / "rank_00000.ring", 0, 2, DONE)
    assert diagnose(tmp_path).outcome == "undecided"
    (tmp_path / "finished.json").write_text('{"kind": "finished", "command": ["torchrun"], "time_s": 3.0}')
    assert diagnose(tmp_path).outcome == "healthy"
