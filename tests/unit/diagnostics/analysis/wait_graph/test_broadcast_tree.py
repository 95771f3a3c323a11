"""Which ranks of gloo's broadcast hang when one of them names another root."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.divergence.roots import deviating_rank, stuck_ranks


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
