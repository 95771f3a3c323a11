"""What one reads in a terminal: the answer first, at any width, with and without colour."""

import re

import pytest

from diagnostics.report.terminal import render
from tests.unit.diagnostics.report.samples import HOSTILE, finding, full, mismatch, report

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", [60, 80, 120, 200, None])
def test_the_answer_is_in_the_first_five_lines(columns: int | None) -> None:
    text = render(full(), columns=columns, colour=False)
    five = "\n".join(text.splitlines()[:5])
    for told in (
        "HUNG: ranks issued different operations",
        "rank 1 (victims: ranks 0, 2-3)",
        "/home/me/project/train.py:88 in log_metrics",
        "train.py:88: call broadcast on every rank",
        *(["what    At position 41"] if columns != 60 else []),
    ):
        assert told in five
    if columns:
        assert max(map(len, text.splitlines())) <= columns


def test_a_pipe_gets_whole_sentences_and_no_colour() -> None:
    text = render(full(), columns=None, colour=False)
    assert "\x1b" not in text and not re.search(r" $", text, re.MULTILINE)
    assert "none of them can complete." in next(line for line in text.splitlines() if line.startswith("what"))


def test_colour_changes_nothing_but_colour() -> None:
    coloured = render(full(), columns=100, colour=True)
    plain = render(full(), columns=100, colour=False)
    assert "\x1b[" in coloured
    stripped = [line.rstrip() for line in ANSI.sub("", coloured).splitlines()]
    assert stripped == [line.rstrip() for line in plain.splitlines()]


def test_both_sides_of_a_mismatch_stand_beside_each_other() -> None:
    lines = render(full(), columns=120, colour=False).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("rank 1 (to blame)"))
    assert "ranks 0, 2-3" in lines[at]
    assert lines[at + 1].split("  ")[0] == "broadcast [1] int64" and "all_reduce [1048576] float32" in lines[at + 1]
    assert "train.py:88" in lines[at + 2] and "train.py:61" in lines[at + 2]


def test_in_a_narrow_terminal_the_sides_are_below_each_other() -> None:
    lines = render(full(), columns=60, colour=False).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("rank 1 (to blame)"))
    assert "ranks 0, 2-3" not in lines[at] and any(line.startswith("ranks 0, 2-3") for line in lines[at:])


def test_a_long_path_keeps_its_end() -> None:
    made = report(mismatch("/very" * 40 + "/train.py"))
    where = next(line for line in render(made, columns=80, colour=False).splitlines() if line.startswith("where"))
    assert len(where) <= 80 and "/train.py:88 in log_metrics" in where


def test_details_on_request() -> None:
    brief, whole = (render(full(), columns=120, colour=False, verbose=verbose) for verbose in (False, True))
    for told in ("Fault tree", "Minimal cut sets", "Consequences", "Connection closed by peer", "exposed ms"):
        assert told not in brief and told in whole
    assert "[x] many tiny buckets are reduced [overlap.small_buckets]: exposed 41 ms of 180 ms" in whole
    assert "[ ] Memory ran out or is about to (or) - ruled out: 3 branches below ruled out" in whole
    assert "-v for the fault tree" in brief and "-v for the fault tree" not in whole


def test_healthy() -> None:
    text = render(report(), columns=80, colour=False)
    assert text.startswith("HEALTHY: no cause found: ") and len(text.splitlines()) == 1


def test_a_cause_of_ones_own_without_a_tree() -> None:
    text = render(report(finding("site.backup_running", ranks=(2,))), columns=80, colour=False, verbose=True)
    assert text.startswith("AT RISK: site.backup_running")
    assert "Causes of your own detectors" in text


def test_evidence_cannot_write_to_the_terminal() -> None:
    for verbose in (False, True):
        text = render(full(HOSTILE), columns=100, colour=False, verbose=verbose)
        assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
        assert "\\x1b[31m" in render(full(HOSTILE), columns=None, colour=False, verbose=True)


def test_thousands_of_ranks_stay_readable() -> None:
    everyone = tuple(range(1, 16384, 2))
    made = report(finding("hang.host_stall", ranks=(0,), victims=everyone), world_size=16384)
    line = render(made, columns=None, colour=False).splitlines()[1]
    assert len(line) < 200 and "and 8180 more" in line
