"""The answer in one line, and who waits where."""

from diagnostics.contract.findings import Group
from diagnostics.evidence.model import Frame, RankError
from dtk.preflight.calls import End, Record
from dtk.preflight.verdict import Waiting, judge
from tests.unit.preflight.programs import Step, blocking, record

WORLD = Group("0", (0, 1, 2), "default_pg")
STEP: Step = ("call", 0, "all_reduce", 8)
RAISED = RankError(
    None, "", 0, "ValueError", "bad", (Frame("/x/site-packages/torch/a.py", 1, "f"), Frame("/job/data.py", 7, "load"))
)


def records(*ends: End, last: int = 0) -> dict[int, Record]:
    """Two calls of each rank; the last rank makes `last` calls only."""
    by_rank = {}
    for rank, end in enumerate(ends):
        calls = blocking(*[STEP] * (last if rank == len(ends) - 1 else 2))
        by_rank[rank] = Record(rank, record(rank, [WORLD], calls).program, (WORLD,), end)
    return by_rank


def test_a_job_that_ends() -> None:
    verdict = judge(records(End(), End(), End("exited"), last=2), {}, "a test")
    assert (verdict.ends, verdict.hangs, verdict.stands, verdict.report) == (True, False, "", None)


def test_ranks_that_wait_for_one_that_raised() -> None:
    verdict = judge(records(End(), End(), End("raised", error=RAISED), last=1), {}, "a test", made_up=True)
    assert (verdict.ends, verdict.hangs) == (False, True)
    assert verdict.stands == "ranks 0-1 in all_reduce at train.py:12; rank 2 raised ValueError at data.py:7"
    assert verdict.waiting == dict.fromkeys((0, 1), Waiting("all_reduce", "/job/train.py:12"))
    assert verdict.waits(without=0) == Waiting("all_reduce", "/job/train.py:12")
    assert verdict.report is not None
    assert verdict.report.root_causes[0].cause == "hang.rank_raised"
    assert (
        verdict.report.notes[0].endswith("The job would hang here.") and "placeholder values" in verdict.report.notes[1]
    )
    assert verdict.report.run_folder is None


def test_a_job_that_fails_though_nobody_waits() -> None:
    verdict = judge(records(*[End("raised", error=RAISED)] * 3, last=2), {}, "a test")
    assert (verdict.ends, verdict.hangs, verdict.waiting) == (False, False, {})
    assert verdict.stands == "ranks 0-2 raised ValueError at data.py:7"
    assert verdict.report is not None and verdict.report.notes[0].endswith("The job would fail here.")


def test_other_ends() -> None:
    killed = judge(records(End(), End(), End("killed", signal="SIGKILL"), last=1), {}, "a test")
    assert killed.stands.endswith("rank 2 was killed by SIGKILL")
    stuck = judge(
        records(End(), End(), End("stalled", stack=(Frame("/job/data.py", 9, "read"),)), last=1), {}, "a test"
    )
    assert stuck.stands.endswith("rank 2 is stuck outside any call")
    assert str(stuck.waiting[2]) == "is stuck outside any call"
    exited = judge(records(End(), End(), End("exited"), last=1), {}, "a test")
    assert exited.stands.endswith("rank 2 ended")
