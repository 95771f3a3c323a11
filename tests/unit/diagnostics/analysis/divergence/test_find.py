"""Which ranks' calls differ, where first: votes, ties, and the divergences of a job."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import between, find
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.vote import count_votes
from diagnostics.contract.findings import SUSPECTED
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Frame
from tests.unit.diagnostics.analysis.calls import DEFAULT, START_S, call, history, survey

OTHER = GroupKey("nccl", "1", "tp")
LOOP = (10, 20, 30)


def everybody(ranks: object) -> set[int]:
    return set(range(8))


def divergences_of(ranks: dict[int, list[Call]], **more: object) -> list[tuple[str, tuple[int, ...], int]]:
    job = survey(ranks, len(ranks))

    def calls_of(rank: int, key: GroupKey) -> list[Call]:
        return [item for item in ranks[rank] if item.key == key]

    cases = find(job, calls_of, everybody, **more)  # type: ignore[arg-type]
    return [(case.kind, case.culprits, case.position) for case in cases]


def test_the_one_that_left_a_call_out_is_blamed() -> None:
    loop = history(*LOOP * 4)
    ranks = {rank: history(*LOOP * 4) for rank in range(4)}
    ranks[2] = history(*LOOP, 10, *LOOP[2:], *LOOP, *LOOP)
    assert divergences_of(ranks) == [("left_out", (2,), 5)]
    assert divergences_of(dict.fromkeys(range(3), loop)) == []


def test_of_two_ranks_neither_stands_out() -> None:
    two = {0: [call(1, 1, size=1), call(2, 5)], 1: [call(1, 1, size=1), call(2, 9, "all_gather")]}
    ((_, culprits, position),) = divergences_of(two)
    assert (culprits, position) == ((0, 1), 2)


def test_a_rank_that_ended_in_order_ran_fewer_iterations() -> None:
    ranks = {rank: [call(1, 5, size=1), call(2, 10)] for rank in range(3)}
    ranks[1] = [call(1, 5, size=1), call(2, 10, size=4)]
    assert divergences_of(ranks)[0][0] != "fewer_iterations"
    assert divergences_of(ranks, ended=[1]) == [("fewer_iterations", (1,), 2)]
    assert divergences_of(ranks, ended=[0, 1, 2]) == divergences_of(ranks), "nobody waits for it"


def test_of_two_groups_the_earlier_divergence_counts() -> None:
    def rank(first: int, second: int) -> list[Call]:
        return [call(1, 5, size=first), call(1, 7, size=second, key=OTHER, at_s=START_S + 5)]

    assert divergences_of({0: rank(1, 1), 1: rank(1, 1), 2: rank(2, 2)}) == [("other_arguments", (2,), 1)]


def test_a_divergence_that_the_first_cannot_have_touched_is_kept() -> None:
    pairs = {name: GroupKey("nccl", name, "") for name in "12"}

    def rank(name: str, size: int, at_s: float) -> list[Call]:
        return [call(1, 5, size=size, key=pairs[name], at_s=START_S + at_s)]

    ranks = {0: rank("1", 1, 1), 1: rank("1", 1, 1), 2: rank("1", 2, 1)}
    ranks |= {3: rank("2", 1, 9), 4: rank("2", 1, 9), 5: rank("2", 3, 9)}
    job = survey(ranks, 6)
    cases = find(job, lambda value, key: ranks[value], set)
    assert [case.culprits for case in cases] == [(2,), (5,)]
    reached = find(job, lambda item, key: ranks[item], everybody)
    assert [case.culprits for case in reached] == [(2,)]


def test_the_ring_that_recorded_the_same_call_gives_its_positions() -> None:
    ring = GroupKey(SNAPSHOTS, "0", "default_pg")

    def rank(size: int) -> list[Call]:
        return [call(3, 5, size=size), call(7, 5, size=size, key=ring, at_s=START_S + 3, step=2)]

    ranks = {0: rank(1), 1: rank(1), 2: rank(9)}
    job = survey({entry: [own[0]] for entry, own in ranks.items()}, 3)
    for item, own in survey({entry: [own[1]] for entry, own in ranks.items()}, 3).ranks.items():
        job.ranks[item].lines |= own.lines
    both = survey({entry: [own[1]] for entry, own in ranks.items()}, 3)
    job.groups |= both.groups
    (case,) = find(job, lambda value, key: [own for own in ranks[value] if own.key == key], everybody)
    assert (case.key, case.position, case.minority.step, case.culprits) == (ring, 7, 2, (2,))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_side_without_a_call_at_the_position_cannot_be_compared(lost: int) -> None:
    vote = count_votes(DEFAULT, 2, {0: "a", 1: "b"}, (0, 1))
    calls = {0: [call(2, 5)], 1: [call(2, 6, size=9)]}
    assert between(vote, lambda rank, _: calls[rank]) is not None
    assert between(vote, lambda rank, _: [] if rank == lost else calls[rank]) is None


def test_parts_of_a_coalesced_block_are_no_divergence() -> None:
    vote = count_votes(DEFAULT, 2, {0: "a", 1: "b"}, (0, 1))
    assert between(vote, lambda rank, _: [call(2, 5 + rank)]) is None


def test_a_rank_that_stopped_early_is_to_blame_at_a_tie_as_well() -> None:
    past = history(*LOOP, *LOOP, 10)
    calls = {0: [*past, call(8, 20, size=20)], 1: [*past, call(8, 31, "barrier", None)]}
    vote = count_votes(DEFAULT, 8, {0: "a", 1: "b"}, (0, 1))
    case = between(vote, lambda rank, _: calls[rank], steps={1: True})
    assert case is not None and (case.kind, case.culprits, case.tie) == ("fewer_iterations", (1,), False)
    case = between(vote, lambda rank, _: calls[rank])
    assert case is not None and case.tie and case.culprits == (0, 1) and case.confidence <= 0.8
    assert case.peers == () and case.time_s == START_S + 8


def test_rank_0_alone_leaves_both_kinds_open() -> None:
    past = history(*LOOP, *LOOP, 10, callers=())
    calls = {rank: [*past, call(8, 20, size=20)] for rank in (1, 2)}
    calls[0] = [*past, call(8, 60, "barrier", None)]
    vote = count_votes(DEFAULT, 8, {0: "b", 1: "a", 2: "a"}, range(3))
    case = between(vote, lambda rank, _: calls[rank])
    assert case is not None and case.culprits == (0,)
    assert case.explanation.alternatives == ("added",) and case.confidence == SUSPECTED
    calls[0] = [*past, call(8, 31, "barrier", None)]
    case = between(vote, lambda rank, _: calls[rank])
    assert case is not None and not case.explanation.alternatives, "the line after the loop"


BRANCH = """\
def save(rank):
    {guard}
    barrier()
def train(rank):
    for step in steps:
        all_reduce()
        {condition}
            save(rank)
        {other}
            broadcast()
"""


@pytest.mark.parametrize(
    ("guard", "condition", "other", "kind"),
    [
        ("pass", "if rank < 2:", "if True:", "other_operation"),
        ("pass", "if rank < 2:", "with timer:", "left_out"),
        ("if rank > 1: return", "with timer:", "with timer:", "left_out"),
        ("pass", "with timer:", "if rank > 1:", "added"),
        ("pass", "with timer:", "with timer:", "other_operation"),
        ("pass", "if rank < 2:", "else:", "other_operation"),
    ],
)
def test_half_of_the_ranks_that_a_condition_of_a_caller_selects(
    tmp_path: Path, guard: str, condition: str, other: str, kind: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(BRANCH.format(guard=guard, condition=condition, other=other))
    os.utime(program, (1, 1))
    own, caller, peer = (Frame(str(program), *at) for at in ((3, "save"), (8, "train"), (10, "train")))
    past = [replace(call(seq, 6), stack=(Frame(str(program), 6, "train"),)) for seq in (1, 2)]
    saves = [*past, replace(call(3, 3, "barrier", None), stack=(own, caller))]
    others = [*past, replace(call(3, 10, "broadcast"), stack=(peer,))]
    vote = count_votes(DEFAULT, 3, dict.fromkeys((0, 1), "b") | dict.fromkeys((2, 3), "a"), range(4))
    case = between(vote, lambda rank, _: saves if rank < 2 else others)
    assert case is not None and case.tie and case.culprits == (0, 1, 2, 3)
    turned = {"left_out": "added", "added": "left_out"}.get(kind)
    assert case.kind in (kind, turned if case.minority_rank < 2 else None)
