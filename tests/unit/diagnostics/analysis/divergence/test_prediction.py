"""What comes next in a history, by the longest part of its own past that was there before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.analysis.divergence.prediction import Prediction, common_prefixes, predict


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
    found = predict(past)
    assert found == Prediction(context, size)
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
    found = predict(past)
    assert found is not None and found.whole and found.round == len(body)
    assert past[-found.round] == body[into]
