"""Folding of help texts: nothing is lost, nothing is wider than the terminal, what must stay together stays."""

import argparse

import pytest
from hypothesis import given, settings, strategies as st

from dtk.console.options import HelpFormatter, fold, read_text, show_help

WORDS = st.lists(st.text("abcdefghij", min_size=1, max_size=9), min_size=1, max_size=40).map(" ".join)


@given(WORDS, st.integers(30, 120))
@settings(max_examples=80, deadline=None)
def test_prose_keeps_its_words_and_fits(text: str, width: int) -> None:
    folded = fold(text, width)
    assert folded.split() == text.split()
    assert max(map(len, folded.splitlines())) <= width


@given(WORDS, st.integers(60, 120))
@settings(max_examples=40, deadline=None)
def test_folding_what_is_folded_changes_nothing(text: str, width: int) -> None:
    assert fold(fold(text, width), width) == fold(text, width)


def test_lines_are_folded_one_by_one() -> None:
    text = "one two three four\n\n  dtk ls    what has run\nfive"
    assert fold(text, 200) == text + "\n"
    assert fold(text, 12).splitlines()[:4] == ["one two", "three four", "", "  dtk ls"]


def test_the_right_column_is_folded_below_itself() -> None:
    row = "  left   " + "right " * 12
    lines = fold(row.rstrip(), 50).splitlines()
    assert len(lines) > 1
    assert all(line.startswith(" " * 9 + "right") for line in lines[1:])


def test_a_right_column_without_room_goes_below() -> None:
    row = "  " + "x" * 40 + "   " + "right " * 8
    lines = fold(row.rstrip(), 50).splitlines()
    assert lines[0] == "  " + "x" * 40 and lines[1].startswith("      right")


def test_a_command_can_still_be_copied() -> None:
    command = "  dtk run " + "strategy=fsdp " * 9
    lines = fold(command.rstrip(), 60).splitlines()
    assert all(line.endswith(" \\") for line in lines[:-1]) and not lines[-1].endswith("\\")
    assert " ".join(line.removesuffix("\\").strip() for line in lines).split() == command.split()


def test_a_text_has_a_description_an_epilog_and_values() -> None:
    description, epilog = read_text("watch", {"stall_timeout_s": 7})
    assert "{stall_timeout_s}" not in description + (epilog or "")
    with pytest.raises(FileNotFoundError):
        read_text("no such command", {})


def test_no_subcommand_is_answered_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="dtk x", description="what it is", formatter_class=HelpFormatter)
    assert show_help(parser) == 0
    assert "what it is" in capsys.readouterr().out


def test_prose_is_folded_and_lists_are_kept() -> None:
    text = (
        "A sentence that is written in one line is folded as one paragraph.\nexit code: 0 done.\n\n"
        "examples:\n  dtk ls       what has run on this machine\n  dtk show     one run\n"
        "  64 levels of JSON and more of it"
    )
    assert fold(text, 42).splitlines() == [
        "A sentence that is written in one line is",
        "folded as one paragraph.",
        "exit code: 0 done.",
        "",
        "examples:",
        "  dtk ls",
        "      what has run on this machine",
        "  dtk show     one run",
        "  64 levels of JSON and more of it",
    ]
    assert fold(text, 50).splitlines()[-3:-1] == [
        "  dtk ls       what has run on this machine",
        "  dtk show     one run",
    ]


def test_a_long_command_can_still_be_copied() -> None:
    long = "  torchrun --nnodes=2 --nproc-per-node=8 -m dtk doctor\n      several nodes"
    assert fold(long, 40).splitlines() == [
        "  torchrun --nnodes=2 \\",
        "      --nproc-per-node=8 -m dtk doctor",
        "      several nodes",
    ]
