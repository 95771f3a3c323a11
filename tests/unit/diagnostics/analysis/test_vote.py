"""Who deviates: sides, ties, and what settles them."""

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.vote import (
    OF_JOB,
    Vote,
    behind,
    count_votes,
    is_majority,
    is_minority,
    settled,
    supported,
)
from tests.unit.diagnostics.analysis.calls import DEFAULT

PAIRS = Vote(DEFAULT, 1, ((0, 1), (2, 3), (4,)))


def test_sides_are_counted_the_largest_first() -> None:
    vote = count_votes(DEFAULT, 4, {0: "b", 1: "a", 2: "b", 3: "a", 5: "b", 6: "c"}, range(8))
    assert vote == Vote(DEFAULT, 4, ((0, 2, 5), (1, 3), (6,)), (4, 7))
    assert (vote.tie, vote.minority, vote.present) == (False, (1, 3, 6), (0, 1, 2, 3, 5, 6))
    assert vote.side_of(3) == (1, 3) and vote.side_of(7) == (7,)


def test_at_a_tie_all_are_the_minority() -> None:
    vote = count_votes(DEFAULT, 1, {0: "b", 1: "b", 2: "a", 3: "a"}, range(4))
    assert vote.tie and vote.sides == ((0, 1), (2, 3)) and vote.minority == (0, 1, 2, 3)


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 9), st.integers(0, 3), min_size=1))
def test_every_rank_is_on_one_side(said: dict[int, int]) -> None:
    vote = count_votes(DEFAULT, 1, said, range(10))
    assert sorted(vote.present + vote.silent) == list(range(10))
    assert [len(side) for side in vote.sides] == sorted(Counter(said.values()).values(), reverse=True)
    assert set(vote.minority) <= set(vote.present)


def test_what_settles_a_vote_decides_against_more_ranks() -> None:
    vote = settled((DEFAULT, 7), [5], [1, 2])
    assert (vote.sides, vote.minority, vote.tie, vote.has_majority) == (((5,), (1, 2)), (1, 2), False, False)
    assert not settled((DEFAULT, 7), [0], [1]).tie


@pytest.mark.parametrize(("deviating", "tie"), [([1], False), ([1, 2], True), ([1, 2, 3], False)])
def test_sides_that_only_their_sizes_divide_may_be_a_tie(deviating: list[int], tie: bool) -> None:
    vote = settled((DEFAULT, 7), [5, 6], deviating, or_tie=True)
    assert (vote.tie, vote.sides) == (tie, ((5, 6), tuple(deviating)))


@pytest.mark.parametrize(
    ("others", "minority"),
    [
        ((0, 4, 0), (0, 1, 4)),
        ((3, 0, 0), (2, 3, 4)),
        ((1, 1, 0), (0, 1, 2, 3, 4)),  # Both calls are made in other groups.
        ((0, 0, 0), (0, 1, 2, 3, 4)),
        ((0, 0, 9), (0, 1, 2, 3, 4)),  # The smaller side was no part of the tie.
    ],
)
def test_groups_of_the_same_kind_settle_a_tie(others: tuple[int, ...], minority: tuple[int, ...]) -> None:
    assert supported(PAIRS, others).minority == minority


def test_nothing_is_settled_without_a_tie() -> None:
    clear = count_votes(DEFAULT, 1, {0: "a", 1: "a", 2: "a", 3: "b"})
    assert supported(clear, (0, 5)) == clear


@pytest.mark.parametrize(("members", "expected"), [(5, True), (6, False)])
def test_a_majority_is_one_of_the_silent_ranks_too(members: int, expected: bool) -> None:
    assert count_votes(DEFAULT, 1, {0: "a", 1: "a", 2: "a", 3: "b"}, range(members)).has_majority == expected


@pytest.mark.parametrize(
    ("counts", "size", "ranks"),
    [
        ({0: 41, 1: 40, 2: 41}, 3, (1,)),
        ({0: 41, 1: 40, 2: 40, 3: 41}, 4, ()),  # Half of them.
        ({0: 40, 1: 40, 2: 41}, 3, ()),  # One rank is ahead.
        ({0: 7, 1: 7}, 2, ()),
        ({0: 40, 1: 41}, 4, (0,)),  # Two ranks left no count.
        ({0: 40, 1: 41, 2: 42, 3: 41, 4: 42}, 5, (0,)),
        ({}, 4, ()),
    ],
)
def test_the_ranks_behind_are_fewer_than_half_of_their_group(
    counts: dict[int, int], size: int, ranks: tuple[int, ...]
) -> None:
    assert behind(counts, size) == ranks


@pytest.mark.parametrize(
    ("hashes", "first", "minority", "tie"),
    [
        ([5, 5, 7, 5], 0, (2,), False),
        ([7, 5, 5, 5], 1, (0,), False),
        ([5, 7], 0, (0, 1), True),
        ([5, 7, 5, 7], 0, (0, 1, 2, 3), True),
        ([5, 6, 7, 7], 2, (0, 1), False),
        ([5, 5], 0, (), False),
    ],
)
def test_any_value_divides_ranks(hashes: list[int], first: int, minority: tuple[int, ...], tie: bool) -> None:
    vote = count_votes(OF_JOB, 0, dict(enumerate(hashes)))
    assert (vote.sides[0][0], vote.minority, vote.tie) == (first, minority, tie)


@pytest.mark.parametrize(("count", "most", "few"), [(1, False, True), (2, False, False), (3, True, False)])
def test_half_is_neither_majority_nor_minority(count: int, most: bool, few: bool) -> None:
    assert (is_majority(count, 4), is_minority(count, 4)) == (most, few)
