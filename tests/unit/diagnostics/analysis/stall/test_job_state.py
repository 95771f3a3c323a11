"""What came first is the cause: ends of ranks that had waited before explain nothing."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.single_calls import deviating_rank, stuck_ranks
from diagnostics.analysis.stall import job_state
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.model import Frame, LogFact, RankError
from diagnostics.evidence.ring import format as ring
from tests.unit.diagnostics.hang.dumps import START_NS, Job, Op, confirmed, detect, evidence, write
from tests.unit.diagnostics.hang.rings import write_ring

STEP = [Op(line=10), Op("all_gather", 16, 20)]
START_S = START_NS / 1e9


def stalled(folder: Path) -> None:
    """Rank 2 never comes to the call that the others wait in."""
    write(folder, Job({rank: STEP if rank == 2 else [*STEP, STEP[0]] for rank in range(4)}))


@pytest.mark.parametrize("ranks", [(0, 1, 3), (0, 1, 2, 3)])
def test_ranks_that_leave_together_after_they_waited_are_not_blamed(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    stalled(tmp_path)
    exits = [RankError(rank, "log", 1, "", "", exit_code=7, time_s=START_S + 60) for rank in ranks]
    result = evidence(tmp_path, world_size=4, errors=exits)
    assert confirmed(result) == [("host_stall", (2,))]
    ended = next(finding for finding in detect(result) if finding.cause == "hang.rank_exited")
    assert ended.status == "undecided"
    assert "the wait came first" in ended.summary


def test_equal_exits_of_all_ranks_blame_nobody(tmp_path: Path) -> None:
    exits = [RankError(rank, "log", rank + 1, "", "", exit_code=7) for rank in range(4)]
    assert confirmed(evidence(tmp_path, world_size=4, errors=exits)) == []


@pytest.mark.parametrize("after_s", [60, 1])
@pytest.mark.parametrize(
    "end", [{"type": "TimeoutError", "message": "step exceeded 60 s"}, {"signal": "SIGKILL", "exit_code": -9}]
)
def test_where_calls_differ_the_same_end_of_all_ranks_after_the_wait_blames_nobody(
    tmp_path: Path, end: dict[str, Any], after_s: float
) -> None:
    """As of a job's own watchdog, or of a script that kills what stands still."""
    other = Op("all_gather", 16, 30)
    write(tmp_path, Job({rank: [*STEP, other if rank == 2 else STEP[0]] for rank in range(4)}))
    frames = (Frame("/job/watch.py", 4, "check"),) if "type" in end else ()
    about = {"type": "", "message": "", "frames": frames, **end}
    ends = [RankError(rank, "log", rank + 1, time_s=START_S + after_s, **about) for rank in range(4)]
    if "signal" in end:
        ends = [replace(item, message=f"line 12: {4711 + item.line} Killed") for item in ends]
    result = confirmed(evidence(tmp_path, world_size=4, errors=ends))
    assert any(cause in ("rank_raised", "rank_killed") for cause, _ in result) == (after_s < 10)
    if after_s > 10:
        assert [ranks for _, ranks in result] == [(2,)]


def test_a_rank_that_ends_as_those_whose_watchdogs_had_reported_is_one_of_them(tmp_path: Path) -> None:
    line = (
        "[rank{0}]:[E1130 10:00:00.164985384 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600008 "
        "milliseconds before timing out.\n"
    )
    trace = (
        "Traceback (most recent call last):",
        '  File "/job/watch.py", line 4, in check',
        "RuntimeError: no step for 60 s",
    )
    raised = "".join(f"[rank{rank}]: {text}\n" for rank in range(4) for text in trace)
    (tmp_path / "job.log").write_text("".join(map(line.format, (0, 1, 3))) + raised)
    report = diagnose(tmp_path)
    assert report.root_causes == () and report.outcome == "undecided"


def test_a_rank_that_leaves_while_it_waits_for_nobody_is_blamed(tmp_path: Path) -> None:
    stalled(tmp_path)
    rank_error = RankError(2, "log", 1, "", "", exit_code=7, time_s=START_S + 1)
    assert confirmed(evidence(tmp_path, world_size=4, errors=[rank_error])) == [("rank_exited", (2,))]


@pytest.mark.parametrize(("after_s", "culprits"), [(1, ("rank_raised", (0,))), (60, ("host_stall", (2,)))])
def test_an_exception_after_the_stall_explains_nothing_and_is_not_ruled_out(
    tmp_path: Path, after_s: float, culprits: tuple[str, tuple[int, ...]]
) -> None:
    stalled(tmp_path)
    frames = (Frame("/job/watch.py", 4, "check"),)
    error = RankError(0, "error.json", 0, "ValueError", "no progress", frames, time_s=START_S + after_s)
    result = evidence(tmp_path, world_size=4, errors=[error])
    assert culprits in confirmed(result)
    assert next(finding for finding in detect(result) if finding.cause == "hang.rank_raised").status != "ruled_out"
    if after_s > 10:
        assert confirmed(result) == [culprits]


@pytest.mark.parametrize(("file", "line"), [("error.json", 0), ("log", 30), ("log", 2)])
@pytest.mark.parametrize("deviates", [2, 1])
def test_an_exception_that_was_caught_before_the_wait_that_timed_out_came_first(
    tmp_path: Path, file: str, line: int, deviates: int
) -> None:
    """A rank skips a batch with its collective, and waits in its next one until that times out; rank 2 had caught an
    exception, which explains nothing where another rank deviates.
    """
    last = {rank: Op(line=30, group="1") if rank == deviates else STEP[0] for rank in range(4)}
    write(tmp_path, Job({rank: [*STEP, op] for rank, op in last.items()}, groups={"1": [0, 1, 2, 3]}))
    frames = (Frame("/job/data.py", 4, "load"),)
    text = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"
    errors = [
        RankError(2, "log", 10, "ValueError", "bad sample", frames),
        RankError(2, file, line, "RuntimeError", text, time_s=START_S + 60 if line == 0 else None),
    ]
    job = job_state.build(evidence(tmp_path, world_size=4, errors=errors))
    job.survey.ranks[2].time_s = START_S + 60  # As a ring has it, which is written until the process ends.
    assert job.endings[2].type == "ValueError"
    assert job_state._waited_before(job, 2, job.endings[2]) == (line == 2 or deviates != 2)


def test_where_all_known_ends_are_of_victims_no_end_is_ruled_out(tmp_path: Path) -> None:
    text = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"
    errors = [RankError(rank, "log", rank + 1, "RuntimeError", text) for rank in range(3)]
    statuses = {finding.cause: finding.status for finding in detect(evidence(tmp_path, world_size=4, errors=errors))}
    for cause in ("rank_raised", "rank_oom", "rank_killed", "rank_exited"):
        assert statuses[f"hang.{cause}"] == "undecided", cause


def test_gloos_broadcast_tree_shows_the_rank_that_names_another_root() -> None:
    assert stuck_ranks([0, 0, 0, 0]) == set()
    stuck = stuck_ranks([0, 0, 1, 0])
    assert stuck == {0, 2}
    assert deviating_rank((4, 5, 6, 7), tuple(4 + rank for rank in sorted(stuck))) == 6
    assert deviating_rank((4, 5), (4, 5)) is None, "of two ranks either may be wrong"


def test_rings_without_a_call_are_no_good_health(tmp_path: Path) -> None:
    for rank in range(2):
        write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [])
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert "hold no collective" in report.statement


WATCHDOG = (
    "[rank{0}]:[E1130 10:10:2{0}.164985384 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=640000, NumelOut=640000, Timeout(ms)=600000) ran for "
    "600008 milliseconds before timing out.\n"
)


def torchrun_list(*rows: tuple[int, int, str]) -> str:
    row = (
        "[{number}]:\n  time      : 2031-11-30_{at}\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        "  exitcode  : {code} (pid: 400{rank})\n  error_file: <N/A>\n"
    )
    text = (row.format(number=n, rank=rank, code=code, at=at) for n, (rank, code, at) in enumerate(rows))
    return "fit.py FAILED\nFailures:\n" + "".join(text)


@pytest.mark.parametrize(("killed_at", "culprits"), [("10:11:31", False), ("10:00:21", True)])
def test_a_kill_after_the_timeouts_of_the_others_is_the_launchers(
    tmp_path: Path, killed_at: str, culprits: bool
) -> None:
    """torchrun sends SIGKILL 30 s after SIGTERM to what does not end: the rank that the others waited for."""
    ends = [(rank, -6, f"10:11:0{rank}") for rank in (0, 1, 2)]
    (tmp_path / "job.log").write_text(
        "".join(map(WATCHDOG.format, (0, 1, 2))) + torchrun_list(*ends, (3, -9, killed_at))
    )
    report = diagnose(tmp_path)
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_killed", (3,))] * culprits
    first = next(iter(report.suspicions), None)
    assert culprits or (first is not None and (first.cause, first.ranks) == ("hang.host_stall", (3,)))


@pytest.mark.parametrize("died_s", [31.0, 1.0])
def test_beside_dumps_as_well(tmp_path: Path, died_s: float) -> None:
    stalled(tmp_path)
    ends = [RankError(rank, "log", rank, "", "", signal="SIGABRT", time_s=START_S + 600) for rank in (0, 1, 3)]
    killed_s = START_S + 600 + died_s if died_s > 30 else START_S + died_s
    killed = RankError(2, "log", 9, "", "", signal="SIGKILL", time_s=killed_s)
    result = confirmed(evidence(tmp_path, world_size=4, errors=[*ends, killed]))
    assert result == [("host_stall" if died_s > 30 else "rank_killed", (2,))]


@pytest.mark.parametrize("reason", ["DUE TO TIME LIMIT ", ""])
def test_the_tasks_that_slurm_kills_at_the_end_are_not_the_first(tmp_path: Path, reason: str) -> None:
    cancelled = f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2031-11-30T12:00:00 {reason}***\n"
    killed = "srun: error: n1: task 3: Killed\n"
    log = tmp_path / "job.log"
    log.write_text("".join(map(WATCHDOG.format, (0, 1, 2))) + cancelled + killed)
    assert not diagnose(tmp_path).root_causes
    log.write_text(killed + "".join(map(WATCHDOG.format, (0, 1, 2))))
    assert [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes] == [("hang.rank_killed", (3,))]


@pytest.mark.parametrize(("raised_at", "roots"), [("10:10:24", []), ("10:00:22", [("hang.rank_raised", (3,))])])
def test_an_exception_that_the_launcher_dates_after_the_first_timeout_is_later(
    tmp_path: Path, raised_at: str, roots: list[tuple[str, tuple[int, ...]]]
) -> None:
    trace = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/job/data.py", line 5, in load\n'
        "[rank3]: KeyError: 'x'\n"
    )
    timeouts = "".join(map(WATCHDOG.format, (0, 1, 2)))
    (tmp_path / "job.log").write_text(timeouts + trace + torchrun_list((0, -6, "10:11:01"), (3, 1, raised_at)))
    report = diagnose(tmp_path)
    assert [(root.cause, root.ranks) for root in report.root_causes] == roots
    assert roots or report.suspicions[0].ranks == (3,)


@pytest.mark.parametrize(("killed_at", "cause"), [("17:11:10", "memory.host"), ("04:03:03", "hang.rank_killed")])
def test_the_kernels_line_is_about_the_rank_only_if_the_times_fit(tmp_path: Path, killed_at: str, cause: str) -> None:
    """Zones differ by quarters of an hour; the process ids, between a container and its host."""
    (tmp_path / "dmesg.log").write_text(
        f"[Sun Nov 30 {killed_at} 2031] Out of memory: Killed process 5150 (python3) total-vm:9kB, anon-rss:8kB\n"
    )
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + torchrun_list((2, -9, "10:11:12")))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause]


def test_a_process_that_the_kernel_killed_after_the_training_had_ended_is_another_jobs(tmp_path: Path) -> None:
    (tmp_path / "dmesg.log").write_text(
        "[ 1.0] Out of memory: Killed process 5150 (python3) total-vm:9kB, anon-rss:8kB\n"
    )
    (tmp_path / "job.log").write_text("step 1 loss 2.0\nTraining complete.\n")
    assert not diagnose(tmp_path).root_causes


def test_who_lost_its_peers_after_the_job_was_cancelled_names_no_cause(tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text(
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2031-11-20T10:00:05 ***\n"
        "[rank5]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited\n"
        "[rank5]: ncclRemoteError: A call failed possibly due to a network error or a remote process.\n"
    )
    report = diagnose(tmp_path)
    assert not report.suspicions and "cancelled" in report.statement


RAISED = (
    '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/job/data.py", line 5, in load\n[rank{0}]: {1}\n'
)


@pytest.mark.parametrize(("at", "others"), [("10:00:40", False), ("10:00:03", True)])
def test_of_two_failures_the_first_in_time_is_the_cause(tmp_path: Path, at: str, others: bool) -> None:
    raised = RAISED.format(1, "KeyError: 'x'") + RAISED.format(3, "AssertionError: y")
    (tmp_path / "job.log").write_text(raised + torchrun_list((1, 1, "10:00:02"), (3, 1, at)))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("hang.rank_raised", (1, 3) if others else (1,))
    summary = text_of(root).summary
    assert summary.startswith("Rank 1 raised KeyError") and ("rank 3 (AssertionError: y)" in summary) == others


@pytest.mark.parametrize("first", [True, False])
def test_a_kill_below_the_line_of_an_own_exception_is_the_launchers(tmp_path: Path, first: bool) -> None:
    killed, raised = "srun: error: n1: task 2: Killed\n", RAISED.format(1, "KeyError: 'x'")
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + (killed + raised if first else raised + killed))
    roots = [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes]
    assert (("hang.rank_killed", (2,)) in roots) == first and (first or roots == [("hang.rank_raised", (1,))])


@pytest.mark.parametrize(("after_s", "line", "expected"), [(1.1, 0, "other"), (0.5, 0, "own"), (7204, 9, "own")])
def test_an_error_after_the_verdict_of_the_watch_is_an_effect_of_it(
    tmp_path: Path, after_s: float, line: int, expected: str
) -> None:
    """Where a handler of rank 2's exception made another call; the time in a log may be of another zone."""
    other = Op("barrier", 1, 30)
    write(tmp_path, Job({rank: [*STEP, other if rank == 2 else STEP[0]] for rank in range(4)}))
    then = "bad sample (then RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4)"
    error = RankError(2, "error.json", line, "ValueError", then, (Frame("/job/fit.py", 15, "parse"),))
    error = replace(error, time_s=START_S + after_s)
    verdict = LogFact("watch_verdict", None, "watch.json", time_s=START_S + 1)
    result = confirmed(evidence(tmp_path, world_size=4, errors=[error], facts=[verdict]))
    assert (("rank_raised", (2,)) in result) == (expected == "own") and {ranks for _, ranks in result} == {(2,)}


@pytest.mark.parametrize(
    ("last", "by_itself"),
    [
        ((ring.STARTED, None, ring.STARTED), True),
        ((ring.RAISED, None, ring.STARTED), True),
        ((ring.STARTED, ring.STARTED, ring.STARTED), False),
        ((ring.STARTED, ring.RAISED, ring.STARTED), False),
        ((ring.STARTED, ring.RAISED, None), False),
    ],
)
@pytest.mark.parametrize("code", [1, 3])
def test_a_rank_that_made_fewer_calls_and_waits_in_none_ended_by_itself(
    tmp_path: Path, last: tuple[int | None, ...], by_itself: bool, code: int
) -> None:
    """Whatever its exit code; one that made the call which failed may be a victim."""
    (tmp_path / "flight").mkdir()
    for rank, state in enumerate(last):
        third = [] if state is None else [state]
        write_ring(tmp_path / f"flight/rank_{rank:05d}.ring", rank, 3, [ring.FINISHED, ring.FINISHED, *third])
    (tmp_path / "job.log").write_text(torchrun_list((1, code, "10:00:01"), (0, -15, "10:00:02"), (2, -15, "10:00:02")))
    report = diagnose(tmp_path)
    causes = [(root.cause, root.ranks) for root in report.root_causes]
    assert (("hang.rank_exited", (1,)) in causes) == by_itself or code == 3
    assert not any("later" in text_of(each.finding).missing for each in report.findings), "the job has ended"
