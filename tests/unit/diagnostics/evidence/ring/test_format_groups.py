"""Members of groups as a short text, and a key that is theirs alone."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.model import MOST_RANKS
from diagnostics.evidence.ring.format import format_ranks, group_key, parse_ranks


@given(st.lists(st.integers(0, MOST_RANKS - 1), min_size=1, max_size=40, unique=True).map(sorted))
@settings(max_examples=100)
def test_members_are_read_back(ranks):
    assert parse_ranks(format_ranks(tuple(ranks))) == tuple(ranks)


@given(st.integers(0, 100), st.integers(1, 64), st.integers(1, 200))
@settings(max_examples=60)
def test_a_regular_group_takes_little_room(first, step, count):
    ranks = tuple(range(first, first + step * count, step))
    assert len(format_ranks(ranks)) <= 16 or count == 2
    assert parse_ranks(format_ranks(ranks)) == ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0, 1, 2, 3, 8), "0-3,8"), ((0, 8, 16), "0-16/8"), ((5,), "5"), ((), ""), ((0, 2), "0,2"), ((3, 1), "3,1")],
)
def test_texts(ranks, text):
    assert format_ranks(ranks) == text


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-3/0", "1,,2", "1000000", "٣", "1-2-3"])
def test_what_is_no_list_of_ranks(text):
    assert parse_ranks(text) == ()


def test_a_list_that_names_too_many_is_none():
    assert parse_ranks("0-3", 4) == (0, 1, 2, 3)
    assert parse_ranks("0-4", 4) == ()
    assert parse_ranks("0-9999999") == ()
    assert parse_ranks("9-0") == ()


def test_a_key_is_the_same_on_all_ranks_and_on_no_other_group():
    assert group_key("7", (0, 1), 0) == group_key("7", (0, 1), 0)
    assert len({group_key(name, ranks, generation) for name in ("7", "8") for ranks in ((0, 1), (0, 2))
                for generation in (0, 1)}) == 8  # fmt: skip
