"""What comes next in a history by its own past, and the smallest edit behind which two histories agree again."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.divergence.sequences import (
    LONGEST,
    MOST_CALLS,
    Edit,
    Prediction,
    common_prefixes,
    predict,
    smallest_edit,
)  # fmt: skip


@pytest.mark.parametrize(
    ("past", "context", "size"),
    [
        ("abab", 2, 2),
        ("xabcabc", 3, 3),
        ("aaaa", 3, 1),
        ("xabcab", 2, 3),
        # The outer loop's round is longer than the inner one's, and so is the past that it repeats.
        ("aabaab", 3, 3),
    ],
)
def test_the_longest_repeated_past(past: str, context: int, size: int) -> None:
    prediction = predict(past)
    assert prediction == Prediction(context, size)
    assert past[-size] == past[len(past) - size]


@pytest.mark.parametrize("past", ["", "a", "abc"])
def test_nothing_repeats(past: str) -> None:
    assert predict(past) is None


def test_only_occurrences_that_a_call_came_after_count() -> None:
    past = "abxabyab"
    youngest, older = predict(past, "y"), predict(past, "x")
    assert youngest is not None and older is not None
    assert (past[-youngest.round], past[-older.round]) == ("y", "x")
    assert predict(past, "z") is None


def test_a_round_is_whole_once_it_was_seen_twice() -> None:
    once, twice = predict("abca"), predict("abcabc")
    assert once is not None and not once.whole
    assert twice is not None and twice.whole


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_common_prefixes_are_those_of_a_comparison_one_by_one(tokens: list[int]) -> None:
    def naive(at: int) -> int:
        length = 0
        while at + length < len(tokens) and tokens[length] == tokens[at + length]:
            length += 1
        return length

    assert common_prefixes(tokens) == [naive(at) for at in range(len(tokens))]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True), st.integers(2, 6), st.data())
def test_a_loop_goes_on_as_before(body: list[int], rounds: int, data: st.DataObject) -> None:
    into = data.draw(st.integers(0, len(body) - 1))
    past = [*body * rounds, *body[:into]]
    prediction = predict(past)
    assert prediction is not None and prediction.whole and prediction.round == len(body)
    assert past[-prediction.round] == body[into]


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
    edit = smallest_edit([NEW * -1, *rest], rest)
    assert edit is not None and edit.agreeing == LONGEST - 1


@settings(max_examples=50)
@given(TOKENS, st.integers(1, 5))
def test_a_planted_run_is_found_on_the_side_that_has_it(rest: list[int], count: int) -> None:
    planted = [NEW + at for at in range(count)]
    for kind, sides in (("drop", ([*planted, *rest], rest)), ("insert", (rest, [*planted, *rest]))):
        assert smallest_edit(*sides) == Edit(kind, count, len(rest))  # type: ignore[arg-type]


@settings(max_examples=50)
@given(TOKENS, TOKENS)
def test_the_edit_found_makes_all_later_calls_agree(majority: list[int], minority: list[int]) -> None:
    edit = smallest_edit(majority, minority)
    if edit is None:
        return
    ours, theirs = list(majority), list(minority)
    if edit.kind != "insert":
        del ours[: edit.count]
    if edit.kind != "drop":
        del theirs[: edit.count]
    size = min(len(ours), len(theirs))
    assert ours[:size] == theirs[:size]
    assert edit.agreeing == size + (2 if edit.kind == "swap" else 0)
