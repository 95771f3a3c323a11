"""The smallest edit behind which two histories agree again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.analysis.divergence.edit import LONGEST, MOST_CALLS, Edit, smallest_edit

TOKENS = st.lists(st.integers(0, 3), min_size=3, max_size=30)
NEW = 9
"""A token that no history holds otherwise."""


@pytest.mark.parametrize(
    ("majority", "minority", "edit"),
    [
        ("xabc", "abc", Edit("drop", 1, 3)),
        ("xyabc", "abc", Edit("drop", 2, 3)),
        ("abc", "xabc", Edit("insert", 1, 3)),
        ("abc", "xyzabc", Edit("insert", 3, 3)),
        ("xabc", "yabc", Edit("substitute", 1, 3)),
        ("xyab", "yxab", Edit("swap", 2, 4)),
        ("xy", "yx", Edit("swap", 2, 2)),
    ],
)
def test_one_edit(majority: str, minority: str, edit: Edit) -> None:
    assert smallest_edit(majority, minority) == edit


@pytest.mark.parametrize(("majority", "minority"), [("abcd", "xbyd"), ("a", "b"), ("", ""), ("abc", "")])
def test_two_edits_or_nothing_to_compare_are_none(majority: str, minority: str) -> None:
    assert smallest_edit(majority, minority) is None


def test_what_agrees_up_to_the_shorter_end_is_enough() -> None:
    assert smallest_edit("xab", "abcdef") == Edit("drop", 1, 2)
    assert smallest_edit("xab", "abcdef", enough=3) is None


def test_of_a_periodic_history_the_fewest_rounds_are_dropped() -> None:
    assert smallest_edit("xab" + "ab" * 20, "ab" * 21) == Edit("drop", 1, 42)


def test_more_calls_than_one_edit_may_move_are_not_one() -> None:
    rest = list(range(100, 200))
    assert smallest_edit([*range(MOST_CALLS), *rest], rest) == Edit("drop", MOST_CALLS, 100)
    assert smallest_edit([*range(MOST_CALLS + 1), *rest], rest) is None


def test_long_histories_are_compared_up_to_a_limit() -> None:
    rest = list(range(5, 3 * LONGEST))
    found = smallest_edit([NEW * -1, *rest], rest)
    assert found is not None and found.agreeing == LONGEST - 1


@settings(max_examples=50)
@given(TOKENS, st.integers(1, 5))
def test_a_planted_run_is_found_on_the_side_that_has_it(rest: list[int], count: int) -> None:
    planted = [NEW + at for at in range(count)]
    for kind, sides in (("drop", ([*planted, *rest], rest)), ("insert", (rest, [*planted, *rest]))):
        assert smallest_edit(*sides) == Edit(kind, count, len(rest))  # type: ignore[arg-type]


@settings(max_examples=50)
@given(TOKENS, TOKENS)
def test_the_edit_found_makes_all_later_calls_agree(majority: list[int], minority: list[int]) -> None:
    found = smallest_edit(majority, minority)
    if found is None:
        return
    ours, theirs = list(majority), list(minority)
    if found.kind != "insert":
        del ours[: found.count]
    if found.kind != "drop":
        del theirs[: found.count]
    size = min(len(ours), len(theirs))
    assert ours[:size] == theirs[:size]
    assert found.agreeing == size + (2 if found.kind == "swap" else 0)
