"""Suggestions for mistyped names: the nearest first, none that is far off."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.suggest import did_you_mean, nearest

NAMES = ("strategy", "model", "train.steps", "train.global_batch_size", "schedule.warmup_steps")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("startegy", ["strategy"]),
        ("train.step", ["train.steps"]),
        ("steps", ["train.steps"]),  # The section was left out.
        ("train.batch_size", ["train.global_batch_size"]),
        ("quux", []),
        ("", []),
    ],
)
def test_the_nearest_names(typed: str, expected: list[str]) -> None:
    assert nearest(typed, NAMES) == expected


def test_the_same_last_part_in_another_section_is_compared_as_a_whole() -> None:
    assert nearest("qqqqqqqqqq.steps", NAMES) == []
    assert nearest("training.steps", NAMES) == ["train.steps"]


def test_names_as_good_as_the_best_are_all_named_in_order() -> None:
    assert nearest("zero", ["zero3", "zero1", "zero2", "zero0"]) == ["zero0", "zero1", "zero2"]
    assert nearest("zero", ["zero3", "zero1", "zero2"], limit=1) == ["zero1"]
    assert nearest("zero1", ["zero1", "zero2"]) == ["zero1"], "a name that is much better hides the others"


def test_a_name_that_begins_with_the_word_comes_before_one_that_is_merely_similar() -> None:
    assert nearest("h100", ["a100_40", "h200", "h100_sxm"]) == ["h100_sxm"]


def test_short_words_with_another_first_letter_are_other_words() -> None:
    assert nearest("gpu", ["cpu", "cuda", "auto"]) == []
    assert nearest("cpy", ["cpu", "cuda", "auto"]) == ["cpu"]


def test_the_question() -> None:
    assert did_you_mean("fsd", ["fsdp", "ddp"], "strategy=") == "did you mean strategy=fsdp?"
    assert did_you_mean("zero", ["zero1", "zero2"]) == "did you mean zero1 or zero2?"
    assert did_you_mean("x", ["fsdp"]) == ""
    assert did_you_mean("x", []) == ""


@settings(max_examples=60)
@given(st.lists(st.text("abc.", max_size=8), max_size=6, unique=True), st.text("abc.", max_size=8))
def test_suggestions_exist_and_an_exact_name_comes_first(names: list[str], typed: str) -> None:
    suggested = nearest(typed, names)
    assert set(suggested) <= set(names) and len(suggested) <= 3
    if typed in names:
        assert typed in suggested
