"""Ranks without a line, and ranks of which no line shows that they waited."""

from pathlib import Path

import pytest

from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.report.symptoms import positions
from tests.unit.diagnostics.analysis.symptoms.test_gather import GLOO, TIMED_OUT, ended, gather_text, read


@pytest.mark.parametrize(("ranks", "silent"), [(range(1, 8), (0,)), (range(8, 16), ()), ((368,), ())])
def test_who_is_silent_where_no_line_tells_the_size(tmp_path: Path, ranks: range, silent: tuple[int, ...]) -> None:
    line = "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=46, "
    line += "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802211 milliseconds before timing out.\n"
    (tmp_path / "train.log").write_text("".join(map(line.format, ranks)))
    result = symptoms(gather(tmp_path, Limits()))
    assert result is not None and result.silent == silent


def test_a_rank_that_lost_its_peer_where_that_one_timed_out_did_not_wait_with_it(tmp_path: Path) -> None:
    symptoms = read(tmp_path, ended(0, "barrier", TIMED_OUT) + ended(1, "barrier", GLOO))
    assert [wait.ranks for wait in symptoms.waits] == [(0,)] and symptoms.without_report == symptoms.possibly_late == (
        1,
    )


@pytest.mark.parametrize(
    "log",
    [
        ended(0, "recv", TIMED_OUT) + ended(1, "recv", GLOO),
        ended(0, "broadcast", TIMED_OUT) + ended(1, "broadcast", GLOO),
        ended(0, "barrier", TIMED_OUT) + ended(1, "barrier", TIMED_OUT),
        ended(0, "barrier", TIMED_OUT) + ended(1, "all_reduce", GLOO, 30),
    ],
)
def test_ranks_that_waited_for_each_other_did_not_come_late(tmp_path: Path, log: str) -> None:
    symptoms = read(tmp_path, log)
    assert sorted(rank for wait in symptoms.waits for rank in wait.ranks) == [0, 1] and not symptoms.possibly_late


def test_several_ranks_that_lost_their_peers_may_have_waited(tmp_path: Path) -> None:
    symptoms = read(tmp_path, ended(0, "barrier", TIMED_OUT) + ended(1, "barrier", GLOO) + ended(2, "barrier", GLOO))
    assert (
        [wait.ranks for wait in symptoms.waits] == [(0, 1, 2)]
        and symptoms.possibly_late == (1, 2)
        and not symptoms.without_report
    )


@pytest.mark.parametrize(("reported", "without_report"), [((0, 1), (2,)), ((2,), ())])
def test_most_ranks_may_wait_elsewhere_when_the_first_one_gives_up(
    tmp_path: Path, reported: tuple[int, ...], without_report: tuple[int, ...]
) -> None:
    """Those that wait for each other in a group of their own do not lose a connection to the one that gives up."""
    rows = "".join(row(rank, 1 if rank in reported else -15) for rank in range(3))
    log = "".join(ended(rank, "barrier", TIMED_OUT) for rank in reported) + rows
    symptoms = read(tmp_path, log)
    assert [wait.ranks for wait in symptoms.waits] == [reported] and symptoms.without_report == without_report


def row(rank: int, code: int) -> str:
    return (
        f"[{rank}]:\n  time      : 2026-01-05_10:00:01\n  host      : n0\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: 41{rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: ...\n"
    )


@pytest.mark.parametrize(
    ("codes", "unlisted"),
    [
        ({0: 1, 1: 1, 3: 1}, (2,)),
        ({0: -6, 1: -6, 3: -6}, (2,)),
        ({0: 1, 1: 1, 2: 1}, ()),
        ({0: 1, 3: 1}, ()),  # Most are not listed, so torchrun had to stop them.
        ({0: 1, 1: -15, 3: 1}, ()),  # It lists what it stopped.
    ],
)
def test_a_rank_that_torchrun_does_not_list_beside_the_codes_of_the_others(
    tmp_path: Path, codes: dict[int, int], unlisted: tuple[int, ...]
) -> None:
    text = "train.py FAILED\n------------\nFailures:\n" + "".join(row(*code) for code in codes.items())
    result = symptoms(gather_text(tmp_path, text))
    assert (result.unlisted if result else ()) == unlisted


TIMEOUT = (
    "[rank{0}]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:688] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600012 milliseconds\n"
)  # fmt: skip
RAISED = (
    "[rank3]: 2026-11-21 {0} ERROR the upload failed\n[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/job/train.py", line 5, in upload\n[rank3]: ValueError: bad bucket\n'
)


@pytest.mark.parametrize(("at", "late"), [("10:00:40", (3,)), ("09:45:00", ())])
def test_a_rank_that_raised_behind_the_timeouts_of_all_others_had_not_waited(
    tmp_path: Path, at: str, late: tuple[int, ...]
) -> None:
    (tmp_path / "train.log").write_text("".join(map(TIMEOUT.format, range(3))) + RAISED.format(at))
    result = symptoms(gather(tmp_path, Limits()))
    assert result is not None and result.without_report == late


@pytest.mark.parametrize("folders", [False, True])
@pytest.mark.parametrize("last", [40, 30])
def test_how_far_a_rank_is_that_printed_steps_only(tmp_path: Path, folders: bool, last: int) -> None:
    """Its own log shows that it ran, and when it printed its last step, but no line of a watchdog."""
    waits = (
        "[E1130 10:32:11.1 ProcessGroupNCCL.cpp:616] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL("
    )
    waits += (
        "SeqNum=41, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=1800000) ran for 1800010 milliseconds"
    )
    for rank in range(4):
        steps = [f"2026-11-30 10:02:{at} INFO step {at} loss 2.{at} lr 0.001" for at in (10, 20, 30, 40)]
        steps = steps[: 4 if rank < 3 else last // 10]
        path = tmp_path / (f"attempt_0/{rank}/stderr.log" if folders else f"rank{rank}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*steps, *([waits.format(rank)] if rank < 3 else []), ""]))
    result = symptoms(gather(tmp_path, Limits()))
    assert result is not None and result.silent == (3,)
    assert result.printed == (((3,), f"step {last}", f"10:02:{last}"),)
    rows = {row.label: row.text for row in positions(result)}
    assert rows["silent"] == f"rank 3 left no line about a call; its last line is step {last} at 10:02:{last}"
    report = diagnose(tmp_path)
    assert "that appear in the log wait" not in str([item.speaks_for for item in report.suspicions])
    assert {item.ranks for item in report.suspicions if item.ranks} == {(3,)}


def test_steps_of_ranks_that_wait_are_no_sign(tmp_path: Path) -> None:
    line = "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=46, "
    line += "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802211 milliseconds before timing out.\n"
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text("step 10 loss 2.5\nstep 20 loss 2.4\n" + line.format(rank))
    result = symptoms(gather(tmp_path, Limits()))
    assert result is not None and result.silent == () == result.printed
