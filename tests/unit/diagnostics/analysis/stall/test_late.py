"""Ranks that others wait for: a host that stands still, and few that went on alone."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.stall.explain import explain
from diagnostics.analysis.stall.late import HostStall, late_hosts
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import AHEAD
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.model import Frame, RankError, Stacks, Thread
from diagnostics.evidence.stacks.dumps import taken_s
from tests.unit.diagnostics.analysis.calls import DEFAULT, call, frame, job, waiting

SLEEP = (Frame("/venv/lib/python3.11/threading.py", 320, "wait"), Frame("/job/data.py", 7, "wait_for_batch"))


def stacks(rank: int, *frames: Frame, time_s: float | None = 1e9) -> Stacks:
    return Stacks(rank, f"stacks_{rank}", (Thread("MainThread", frames, main=True),), time_s)


def done(count: int) -> list:
    return [call(seq) for seq in range(1, count + 1)]


def test_the_rank_that_never_came_is_late_and_its_stack_says_where_it_is() -> None:
    state = job({0: waiting(3), 1: waiting(3), 2: waiting(3), 3: done(2)}, 4, stacks=[stacks(3, *SLEEP)])
    case = late_hosts(state)
    assert isinstance(case, HostStall)
    assert (case.ranks, case.waiting, case.issued, case.stack_file) == ((3,), (0, 1, 2), 2, "stacks_3")
    assert case.operation == Operation(DEFAULT, 3) and case.activity.frame == SLEEP[1] and case.has_stack
    assert case.last is not None and case.last.seq == 2 and not case.failed
    without = late_hosts(job({0: waiting(3), 1: waiting(3), 2: waiting(3), 3: done(2)}, 4))
    assert isinstance(without, HostStall) and not without.has_stack and without.stack_file == ""


def test_a_rank_that_ended_or_whose_calls_differ_is_not_late() -> None:
    assert late_hosts(job({0: waiting(3), 1: done(2)}, 2)) is not None
    differ = {0: waiting(3), 1: [*done(1), call(2, size=9)]}
    assert late_hosts(job(differ, 2)) is None and job(differ, 2).waits.incomparable() == {0, 1}
    raised = [RankError(1, "train.log", 9, "ValueError", "bad batch")]
    assert late_hosts(job({0: waiting(3), 1: done(2)}, 2, errors=raised)) is None
    assert late_hosts(job({0: waiting(3), 1: waiting(3)}, 2)) is None
    assert late_hosts(job({0: waiting(3)}, 2)) is None, "a rank without a dump is missing, not late"


def test_of_several_calls_that_of_most_missed_ranks_counts() -> None:
    small = GroupKey("nccl", "1", "tp")
    ranks = {0: waiting(2, key=small), 1: waiting(4), 2: done(3), 3: done(3)}
    case = late_hosts(job(ranks, 4, members={small: (0, 2)}))
    assert isinstance(case, HostStall) and case.operation == Operation(DEFAULT, 4) and case.ranks == (2, 3)


def test_few_that_wait_while_most_agree_outside_ran_ahead() -> None:
    case = late_hosts(job({0: waiting(3), **{rank: done(2) for rank in (1, 2, 3)}}, 4))
    assert isinstance(case, Divergence) and case.kind == "added" and case.ended == "majority"
    assert (case.culprits, case.peers, case.limit) == ((0,), (1, 2, 3), AHEAD[False])
    assert (case.position, case.majority.seq) == (3, 2)
    apart = late_hosts(job({0: waiting(3), 1: done(2), 2: done(1), 3: done(2)}, 4))
    assert isinstance(apart, HostStall), "the others do not agree"


@pytest.mark.parametrize(
    ("condition", "calls", "alone"),
    [
        ("if rank == 2:", 2, True), ("if debug:", 2, True), ("with timer:", 2, False),
        ("if rank == 2:", 1, True), ("if debug:", 1, False),
    ],
)  # fmt: skip
def test_a_rank_that_makes_a_group_alone_is_not_late(tmp_path: Path, condition: str, calls: int, alone: bool) -> None:
    """No recorder shows that, but its stack and the text do; a condition that may hold on any rank, if all calls before
    matched."""
    program = tmp_path / "train.py"
    program.write_text(f"def train(rank):\n    {condition}\n        new_group()\n    all_reduce()\n")
    os.utime(program, (1, 1))
    lines = {0: ("all_reduce", 4), 1: ("all_reduce", 4), 2: ("new_group", 3)}
    torch = "/venv/torch/distributed/distributed_c10d.py"
    seen = [stacks(rank, Frame(torch, 9, op), Frame(str(program), line, "train")) for rank, (op, line) in lines.items()]
    state = job({0: waiting(3), 1: waiting(3), 2: done(calls)}, 3, stacks=seen)
    stall = explain(state.evidence)
    assert [(case.kind, case.culprits) for case in stall.inferred] == [("added", (2,))] * alone
    assert alone or (stall.host is not None and stall.host.ranks == (2,))


def test_a_rank_that_ended_with_exit_code_1_is_told() -> None:
    error = RankError(1, "torchrun.log", 3, "", "", exit_code=1)
    state = job({0: waiting(3), 1: done(2)}, 2, errors=[error])
    case = late_hosts(state)
    if case is not None:
        assert isinstance(case, HostStall) and case.failed == (1,)
    else:
        assert state.endings[1].exited_early


def test_when_a_stack_was_taken(tmp_path) -> None:
    state = job({0: waiting(1)}, 2)
    assert taken_s(state.evidence, stacks(0, *SLEEP, time_s=7.0)) == 7.0
    assert taken_s(state.evidence, stacks(0, *SLEEP, time_s=None)) is None
    (tmp_path / "stacks_0").write_text("")
    state.evidence.root = tmp_path
    assert taken_s(state.evidence, stacks(0, *SLEEP, time_s=None)) == (tmp_path / "stacks_0").stat().st_mtime


PAST = """\
def train(rank):
    {test}:
        all_reduce()
    time.sleep(60)
    {after}
for step in range(9):
    {body}
train(1)
"""


@pytest.mark.parametrize(
    ("alone", "test", "after", "at", "caller", "kind"),
    [
        ((0,), "if rank == 0", "pass", 4, 8, "added"),
        ((0,), "if rank == 0", "broadcast()", 4, 8, "added"),
        ((0,), "if rank == 0", "all_reduce()", 4, 8, None),  # The others may have it ahead.
        ((0, 1, 2), "if rank != 3", "pass", 4, 8, None),  # As where one rank prepares the data for all.
        ((0,), "if debug", "pass", 4, 8, "added"),
        ((0,), "if debug", "all_reduce()", 4, 8, None),
        ((0,), "for step in range(9)", "pass", 4, 8, "more_iterations"),
        ((0,), "for step in range(9)", "pass", 3, 8, None),
        ((0,), "for step in range(9)", "all_reduce()", 4, 8, None),
        ((0,), "with timer", "pass", 4, 8, None),
        ((0,), "if rank == 0", "pass", 1, 8, None),
        ((0,), "if rank == 0", "pass", 4, 7, None),  # A loop of the caller comes to it again.
    ],
)
def test_hosts_past_a_call_that_the_source_gives_to_one_rank_left_it_to_that_rank(
    tmp_path: Path, alone: tuple[int, ...], test: str, after: str, at: int, caller: int, kind: str | None
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PAST.format(test=test, after=after, body="train(1)"))
    os.utime(program, (1, 1))
    ranks = {rank: waiting(3) if rank in alone else done(2) for rank in range(4)}
    for rank in alone:
        ranks[rank][-1].stack = (Frame(str(program), 3, "train"),)
    outer = Frame(str(program), caller, "<module>")
    sleep = [stacks(rank, Frame(str(program), at, "train"), outer) for rank in range(4) if rank not in alone]
    case = late_hosts(job(ranks, 4, stacks=sleep))
    assert isinstance(case, Divergence) == (kind is not None)
    if isinstance(case, Divergence):
        assert (case.kind, case.culprits) == (kind, alone)
        assert (case.confidence > 0.7) == ("rank ==" in test), "which of the sides is right"


HELPER = """\
def log():
    all_reduce()
def lead():
    return log()
def save(hook):
    if rank == 0:
        lead()
    wait(hook)
def wait(hook):
    time.sleep(60)
    {after}
save(print)
time.sleep(60)
{later}
"""


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize(
    ("after", "later", "outside", "added"),
    [
        ("pass", "pass", False, True),
        ("barrier()", "pass", False, True),
        ("log()", "pass", False, False),
        ("all_reduce()", "pass", False, False),
        ("hook()", "pass", False, False),
        ("pass", "pass", True, True),
        ("pass", "barrier()", True, True),
        ("pass", "lead()", True, False),
    ],
)
def test_a_call_of_a_helper_that_one_rank_alone_calls(
    tmp_path: Path, ring: bool, after: str, later: str, outside: bool, added: bool
) -> None:
    """A ring keeps the helper's line alone; what the others have ahead in other functions may be their half."""
    program = tmp_path / "train.py"
    program.write_text(HELPER.format(after=after, later=later))
    os.utime(program, (1, 1))

    def frames(*lines: tuple[int, str]) -> tuple[Frame, ...]:
        return tuple(Frame(str(program), *at) for at in (*lines, *[(12, "<module>")] * (len(lines) > 1)))

    path = frames((2, "log"), (4, "lead"), (7, "save"))
    ranks = {0: waiting(3), **{rank: done(2) for rank in range(1, 4)}}
    ranks[0][-1].stack = path[:1] if ring else path
    others = frames((13, "<module>")) if outside else frames((10, "wait"), (8, "save"))
    dumps = [stacks(rank, *(others if rank else path)) for rank in range(4)]
    case = late_hosts(job(ranks, 4, stacks=dumps))
    assert isinstance(case, Divergence) == added
    if isinstance(case, Divergence):
        assert (case.kind, case.culprits) == ("added", (0,))


@pytest.mark.parametrize(("extra", "is_shown"), [(50, True), (10, False)])
def test_a_call_that_one_rank_made_rounds_ago_shows_in_its_later_calls(extra: int, is_shown: bool) -> None:
    """Rank 0 waits in the last round, its others have left the loop; a line of all ranks' shows no extra call."""
    rounds = [call(at, 10 if at % 2 else 20, size=8) for at in range(1, 9)]
    own = [*rounds[:4], call(5, extra), *(replace(at, seq=at.seq + 1) for at in rounds[4:])]
    own[-1] = replace(own[-1], done=False)
    dumps = [stacks(rank, *SLEEP) for rank in range(1, 4)]
    case = late_hosts(job({0: own, **{rank: list(rounds) for rank in range(1, 4)}}, 4, stacks=dumps))
    assert isinstance(case, Divergence) == is_shown
    if isinstance(case, Divergence):
        assert (case.kind, case.culprits, case.minority.site) == ("added", (0,), frame(50))
