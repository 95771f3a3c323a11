"""Rooted collectives that complete on some ranks only: who named another root, and whom that leaves stuck."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.divergence.single_calls import deviating_rank, stuck_ranks
from diagnostics.analysis.stall.explain import roots_differ
from diagnostics.contract.findings import OPEN, POSSIBLE
from diagnostics.evidence.calls import GroupKey
from tests.unit.diagnostics.analysis.calls import call, job

GLOO = GroupKey("gloo", "0", "default_pg")


def broadcast(rank_done: bool, root: int | None = None) -> list:
    return [call(1, op="broadcast", key=GLOO, done=rank_done, wire={"root": root})]


def test_a_broadcast_that_some_completed_shows_ranks_with_different_roots() -> None:
    ranks = {0: broadcast(True), 1: broadcast(False), 2: broadcast(True), 3: broadcast(False)}
    (case,) = roots_differ(job(ranks, 4))
    assert (case.kind, case.position, case.vote.present) == ("other_arguments", 1, (0, 1, 2, 3))
    assert case.culprits == (3,), "gloo's tree: rank 3 with another root leaves 1 and 3 stuck"
    assert (case.peers, case.tie, case.confidence) == ((0, 1, 2), False, POSSIBLE)
    two = {0: broadcast(True), 1: broadcast(False)}
    (open_,) = roots_differ(job(two, 2))
    assert (open_.culprits, open_.tie, open_.confidence) == ((1,), True, OPEN)
    differ = {rank: [call(1, key=GLOO, size=rank), *calls] for rank, calls in ranks.items()}
    assert roots_differ(job(differ, 4)) == []


def test_a_recorded_root_or_an_operation_without_one_is_another_matter() -> None:
    assert roots_differ(job({0: broadcast(True, 0), 1: broadcast(False, 0)}, 2)) == []
    nobody = {rank: broadcast(False) for rank in range(3)}
    assert roots_differ(job(nobody, 3)) == [], "where nobody completed, the root need not differ"
    ranks = {0: [call(1, key=GLOO)], 1: [call(1, key=GLOO, done=False)]}
    assert roots_differ(job(ranks, 2)) == []


@settings(max_examples=40)
@given(st.integers(2, 24), st.integers(0, 23))
def test_with_one_root_everybody_returns(size: int, root: int) -> None:
    assert stuck_ranks([root % size] * size) == set()


def test_two_ranks_that_both_send_or_both_receive_are_stuck() -> None:
    assert stuck_ranks([0, 1]) == {0, 1}, "both send"
    assert stuck_ranks([1, 0]) == {0, 1}, "both receive"


@settings(max_examples=40)
@given(st.integers(3, 12), st.data())
def test_the_rank_is_named_where_its_root_alone_explains_who_is_stuck(size: int, data: st.DataObject) -> None:
    deviating, root = data.draw(st.integers(1, size - 1)), data.draw(st.integers(1, size - 1))
    members = tuple(10 + 3 * rank for rank in range(size))
    stuck = stuck_ranks([root if rank == deviating else 0 for rank in range(size)])
    named = deviating_rank(members, tuple(members[rank] for rank in sorted(stuck)))
    assert named in {None, members[deviating]}


@pytest.mark.parametrize(
    ("roots", "stuck", "named"),
    [
        ([0, 1, 0, 0], {0, 1, 2, 3}, 1),
        ([0, 0, 1, 0], {0, 2}, 2),
        ([0, 0, 0, 2], {1, 3}, 3),
        # The root that the rank names sends it the same in the end: nobody hangs, so nothing shows it.
        ([0, 0, 0, 1], set(), None),
    ],
)
def test_four_ranks(roots: list[int], stuck: set[int], named: int | None) -> None:
    assert stuck_ranks(roots) == stuck
    assert deviating_rank((0, 1, 2, 3), tuple(sorted(stuck))) == named


@pytest.mark.parametrize("members", [(0, 1), tuple(range(65))])
def test_of_two_ranks_and_of_very_many_nothing_is_said(members: tuple[int, ...]) -> None:
    assert deviating_rank(members, members[1:]) is None


def test_nobody_stuck_is_no_deviation_and_ranks_of_other_groups_do_not_count() -> None:
    assert deviating_rank((0, 1, 2, 3), (1, 2, 3)) is None
    assert deviating_rank((0, 1, 2, 3), ()) == deviating_rank((0, 1, 2, 3), (8, 9))
