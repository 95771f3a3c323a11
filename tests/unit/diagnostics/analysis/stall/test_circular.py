"""Cycles of waiting ranks: groups in different orders, sends and receives, calls enqueued crosswise."""

import ast
from pathlib import Path

import pytest

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.stall.circular import GroupOrder, PointToPoint, circular_waits
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Stacks, Thread
from tests.unit.diagnostics.analysis.calls import DEFAULT, START_S, call, frame, job, waiting
from tests.unit.diagnostics.hang.dumps import Job, Op, detect, evidence, write

TP, DP = GroupKey("nccl", "1", "tp"), GroupKey("nccl", "2", "dp")
BOTH = {TP: (0, 1), DP: (0, 1)}


def half(kind: str, peer: int, **more: object) -> list[Call]:
    return [call(1, 10, kind, 4, done=False, p2p=kind, peer=peer, **more)]  # type: ignore[arg-type]


def test_two_groups_in_different_orders() -> None:
    state = job({0: waiting(1, 10, TP), 1: waiting(1, 20, DP)}, 2, members=BOTH)
    (case,) = circular_waits(state)
    assert isinstance(case, GroupOrder) and case.cycle.ranks == (0, 1) == case.culprits
    assert [(side.ranks, side.operation.key, side.waited_for) for side in case.sides] == [
        ((0,), TP, (1,)), ((1,), DP, (0,)),
    ]  # fmt: skip


def test_the_smaller_side_deviates() -> None:
    three = {TP: (0, 1, 2), DP: (0, 1, 2)}
    state = job({0: waiting(1, 10, TP), 1: waiting(1, 20, DP), 2: waiting(1, 10, TP)}, 3, members=three)
    (case,) = circular_waits(state)
    assert isinstance(case, GroupOrder) and case.culprits == (1,)


@pytest.mark.parametrize(
    ("rounds", "culprits"),
    [
        ([(TP, DP, DEFAULT)] * 3, (1,)),
        ([(TP, DP)] * 3, (1,)),
        ([(TP, DP, DEFAULT)], (0, 1)),  # One round shows no custom.
        ([(TP, DP, DEFAULT), (DP, TP, DEFAULT)] * 2, (0, 1)),
    ],
)
def test_at_a_tie_the_rank_that_changed_its_own_order_deviates(
    rounds: list[tuple[GroupKey, ...]], culprits: tuple[int, ...]
) -> None:
    programs = {}
    for rank, last in ((0, TP), (1, DP)):
        counts: dict[GroupKey, int] = {}
        programs[rank] = []
        for number, key in enumerate([key for keys in rounds for key in keys] + [last]):
            counts[key] = counts.get(key, 0) + 1
            programs[rank].append(call(counts[key], 10, key=key, at_s=START_S + number))
        programs[rank][-1].done = False
    (case,) = circular_waits(job(programs, 2, members=BOTH | {DEFAULT: (0, 1)}))
    assert isinstance(case, GroupOrder) and case.culprits == culprits


def test_two_receives_wait_for_each_other() -> None:
    (case,) = circular_waits(job({0: half("recv", 1), 1: half("recv", 0)}, 2))
    assert isinstance(case, PointToPoint) and not case.in_collectives and not case.tags_differ
    assert [rank for rank, _ in case.calls] == [0, 1]


@pytest.mark.parametrize(("tags", "differ"), [((1, 2), True), ((1, None), False)])
def test_tags_alone_may_keep_the_two_halves_apart(tags: tuple[int, int | None], differ: bool) -> None:
    cases = circular_waits(job({0: half("send", 1, tag=tags[0]), 1: half("recv", 0, tag=tags[1])}, 2))
    assert [isinstance(case, PointToPoint) and case.tags_differ for case in cases] == ([True] if differ else [])


def test_a_receive_against_a_collective() -> None:
    state = job({0: half("recv", 1), 1: waiting(1)}, 2)
    (case,) = circular_waits(state)
    assert isinstance(case, PointToPoint)
    assert [rank for rank, _ in case.calls] == [0] and [rank for rank, _ in case.in_collectives] == [1]


def crosswise(first: int, second: int) -> list[Call]:
    return [
        call(1, 10, key=TP, done=False, at_s=START_S + first),
        call(1, 20, key=DP, done=False, at_s=START_S + second),
    ]


def test_collectives_that_all_enqueued_in_different_orders() -> None:
    three = {TP: (0, 1, 2), DP: (0, 1, 2)}
    state = job({0: crosswise(1, 2), 1: crosswise(2, 1), 2: crosswise(1, 2)}, 3, members=three)
    (case,) = circular_waits(state)
    assert isinstance(case, GroupOrder) and case.culprits == (1,) and case.cycle.ranks == (0, 1, 2)
    assert {(side.ranks, side.waited_for) for side in case.sides} == {((0, 2), (1,)), ((1,), (0, 2))}
    same = job({rank: crosswise(1, 2) for rank in range(3)}, 3, members=three)
    assert circular_waits(same) == []


@pytest.mark.parametrize(("fewer", "cycles"), [(1, 0), (0, 1)])
def test_a_rank_that_skipped_a_call_and_enqueued_its_next_one_did_not_swap_two(fewer: int, cycles: int) -> None:
    """Both hosts ran on to the second call of the one group; one of them made a call less of the other group."""
    second, end = (call(2, at, key=key, done=False, at_s=START_S + n) for n, at, key in ((3, 10, TP), (4, 20, DP)))
    ends = [*crosswise(1, 2), second, end], [*crosswise(2, 1), *[second][fewer:], end]
    assert len(circular_waits(job(dict(enumerate(ends)), 2, members=BOTH))) == cycles


def test_a_running_job_has_no_deadlock() -> None:
    state = job({0: waiting(1, 10, TP), 1: waiting(1, 20, DP)}, 2, members=BOTH)
    for record in state.survey.ranks.values():
        record.stuck_dump = False
    assert not state.stands_still() and circular_waits(state) == []
    assert DEFAULT not in state.survey.groups


@pytest.mark.parametrize("scheduled", [True, False])
def test_messages_that_torchs_schedule_of_a_pipeline_posted(scheduled: bool) -> None:
    own = frame(10)
    path = (
        (frame(683, "_wait_batch_p2p", "/lib/torch/distributed/pipelining/schedules.py"), own) if scheduled else (own,)
    )
    stacks = [Stacks(rank, f"{rank}.txt", (Thread("MainThread", path, True),)) for rank in range(2)]
    (case,) = circular_waits(job({0: half("recv", 1), 1: half("recv", 0)}, 2, stacks=stacks))
    assert isinstance(case, PointToPoint) and case.scheduled == scheduled


def _stage(rank: int, micro_batches: int) -> list[Op]:
    """One step of a pipeline of two stages: messages of two replicas, and then what all ranks reduce."""
    peer = rank + 2 if rank < 2 else rank - 2
    group = str(1 + rank % 2)
    message = Op("send" if rank < 2 else "recv", 64, 21, group, peer=peer, wait=False)
    return [*[message] * micro_batches, Op(size=1, line=30, wait=False)]


def test_a_stage_with_fewer_messages_whose_host_went_on_is_found_without_a_cycle(tmp_path: Path) -> None:
    groups = {"1": [0, 2], "2": [1, 3]}
    programs = {rank: [*_stage(rank, 4) * 3, *_stage(rank, 3 if rank < 2 else 4)] for rank in range(4)}
    write(tmp_path, Job(programs, groups, nobody_completes=4))
    (finding,) = [item for item in detect(evidence(tmp_path, world_size=4)) if item.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.p2p_cycle", (0, 1), (2, 3))
    assert "Rank 0 departs from its own earlier rounds: it made all_reduce" in finding.summary


def test_a_stage_with_fewer_messages_that_waits_for_messages_itself(tmp_path: Path) -> None:
    """The middle one of three stages receives and sends less; its own last messages are pending too."""

    def step(rank: int, number: int) -> list[Op]:
        forward = [Op("recv", 64, 21, "1", peer=rank - 1, wait=False)] if rank else []
        forward += [Op("send", 64, 22, "1", peer=rank + 1, wait=False)] if rank < 2 else []
        backward = [Op("recv", 64, 23, "1", peer=rank + 1, wait=False)] if rank < 2 else []
        backward += [Op("send", 64, 24, "1", peer=rank - 1, wait=False)] if rank else []
        return [*forward * number, *backward * number, Op(size=1, line=30, wait=False)]

    programs = {rank: [*step(rank, 4) * 3, *step(rank, 3 if rank == 1 else 4)] for rank in range(3)}
    write(tmp_path, Job(programs, {"1": [0, 1, 2]}, nobody_completes=4))
    (result,) = [case for case in detect(evidence(tmp_path, world_size=3)) if case.status == "confirmed"]
    assert (result.cause, result.ranks, result.victims) == ("hang.p2p_cycle", (1,), (0, 2))


LOOP = """\
def work():
    {loop}:
        all_reduce(group=own)
"""


@pytest.mark.parametrize(
    ("loop", "alive", "ended"), [("for _ in x", False, True), ("for _ in x", True, False), ("if x", False, False)]
)
@pytest.mark.parametrize("recorders", [("nccl",), ("dtk", "nccl")])
def test_a_looping_thread_that_has_ended_made_fewer_calls_and_is_in_no_order(
    monkeypatch: pytest.MonkeyPatch, loop: str, alive: bool, ended: bool, recorders: tuple[str, ...]
) -> None:
    """The thread of rank 2 for one group ended after 3 calls, and its main thread waits for the others elsewhere.

    Without a loop, the thread may be one of many, which rank 2 has yet to start.
    """
    tree = ast.parse(LOOP.format(loop=loop))
    monkeypatch.setattr(source_text, "_tree", lambda file, before_s: tree)
    programs: dict[int, list[Call]] = {rank: [] for rank in range(3)}
    members = {}
    for recorder in recorders:
        own, default = GroupKey(recorder, "2", "undefined"), GroupKey(recorder, "0", "default_pg")
        members |= {own: (0, 1, 2), default: (0, 1, 2)}
        for rank in (0, 1):
            programs[rank] += waiting(4, 3, own, function="work")
        programs[2] += [*waiting(4, 3, own, function="work")[:3], *waiting(1, 16, default, op="barrier")]
    main, working = Thread("MainThread", (frame(16, "main"),), True), Thread("Thread-1", (frame(3, "work"),))
    other = Thread("Thread-1", (frame(40, "wait"), frame(2 if alive else 70, "work" if alive else "bounded")))
    stacks = [Stacks(rank, f"{rank}.txt", (other if rank == 2 else working, main)) for rank in range(3)]
    (case,) = circular_waits(job(programs, 3, members=members, stacks=stacks))
    if ended:
        assert isinstance(case, Divergence) and (case.kind, case.culprits) == ("fewer_iterations", (2,))
    else:
        assert isinstance(case, GroupOrder) and not case.proven


STEP = """\
def log():
    all_reduce(y, group=dp)
def step():
    if late:
        {first}
        {second}
    else:
        all_reduce(x, group=tp)
        submit(log)
"""


@pytest.mark.parametrize(
    ("first", "second", "proven"),
    [
        ("submit(log).result()", "all_reduce(x, group=tp)", True),
        ("submit(log).result()", "pass", False),
        ("submit(log).result()", "other()", False),
        ("submit(log).result()", "all_reduce(x, group=pp)", False),
    ],
)
def test_the_order_is_proven_by_the_call_that_a_branch_still_has_ahead(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str, proven: bool
) -> None:
    """Rank 1 is in its branch, whose thread waits; the lines of the main thread are its callers."""
    tree = ast.parse(STEP.format(first=first, second=second))
    monkeypatch.setattr(source_text, "_tree", lambda file, before_s: tree)
    programs = {0: waiting(4, 8, TP, function="step"), 1: waiting(4, 2, DP, function="log"), 2: []}
    programs[0] += waiting(4, 2, DP, function="log")[:3]
    programs[1] += waiting(4, 8, TP, function="step")[:3]
    programs[2] = list(programs[0])
    mains = [Thread("MainThread", (frame(5 if rank == 1 else 8, "step"),), True) for rank in range(3)]
    stacks = [Stacks(rank, f"{rank}.txt", (main,)) for rank, main in enumerate(mains)]
    members = {TP: (0, 1, 2), DP: (0, 1, 2)}
    (case,) = circular_waits(job(programs, 3, members=members, stacks=stacks))
    assert isinstance(case, GroupOrder) and (case.culprits, case.proven) == ((1,), proven)
