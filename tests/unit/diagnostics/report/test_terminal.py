"""What one reads in a terminal: the answer first, at any width, with and without colour."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.contract.findings import Finding, Text, Where
from diagnostics.diagnose import diagnose
from diagnostics.evidence.model import Problem
from diagnostics.report import jsonform
from diagnostics.report.model import Report
from tests.unit.diagnostics.causes.hang.examples import late_host
from tests.unit.diagnostics.report.samples import (
    HOSTILE,
    as_markdown,
    as_page,
    finding,
    full,
    mismatch,
    report,
    shown as render,
)

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", [60, 80, 120, 200, None])
def test_the_answer_is_in_the_first_five_lines(columns: int | None) -> None:
    text = render(full(), columns=columns, colour=False)
    five = "\n".join(text.splitlines()[:5])
    for result in (
        "HUNG: ranks issued different collective calls",
        "rank 1 (victims: ranks 0, 2-3)",
        "/home/me/project/train.py:88 in log_metrics",
        "train.py:88: call broadcast on every rank",
        *(["what    At position 41"] if columns != 60 else []),
    ):
        assert result in five
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
    at = next(n for n, line in enumerate(lines) if line.startswith("rank 1 (at fault)"))
    assert "ranks 0, 2-3" in lines[at]
    assert lines[at + 1].split("  ")[0] == "broadcast [1] int64" and "all_reduce [1048576] float32" in lines[at + 1]
    assert "train.py:88" in lines[at + 2] and "train.py:61" in lines[at + 2]


def test_in_a_narrow_terminal_the_sides_are_below_each_other() -> None:
    lines = render(full(), columns=60, colour=False).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("rank 1 (at fault)"))
    assert "ranks 0, 2-3" not in lines[at] and any(line.startswith("ranks 0, 2-3") for line in lines[at:])


def test_a_long_path_keeps_its_end() -> None:
    result = report(mismatch("/very" * 40 + "/train.py"))
    where = next(line for line in render(result, columns=80, colour=False).splitlines() if line.startswith("where"))
    assert len(where) <= 80 and "/train.py:88 in log_metrics" in where


def test_details_on_request() -> None:
    brief, whole = (render(full(), columns=120, colour=False, verbose=verbose) for verbose in (False, True))
    for text in (
        "Fault tree",
        "each alone explains",
        "Consequences",
        "Connection closed by peer",
        "exposed ms",
    ):
        assert text not in brief and text in whole
    assert "[x] gradients are reduced in many tiny buckets [overlap.small_buckets]: exposed 41 ms of 180 ms" in whole
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
    result = report(finding("hang.host_stall", ranks=(0,), victims=everyone), world_size=16384)
    line = render(result, columns=None, colour=False).splitlines()[1]
    assert len(line) < 200 and "and 8180 more" in line


def unlike(cause: str, missing: str = "") -> Finding:
    return Finding(cause=cause, status="undecided", facts=Text(f"Nothing tells of {cause}.", missing=missing))


def lines_of(report: Report, label: str, *, verbose: bool = False) -> list[str]:
    text = render(report, columns=None, colour=False, verbose=verbose)
    return [line[8:] for line in text.splitlines() if line.startswith(label.ljust(8))]


def test_what_is_undecided_of_other_kinds_of_trouble_is_one_folded_line() -> None:
    slow, memory = unlike("overlap.skew", "a trace"), unlike("memory.leak", "a snapshot")
    result = report(mismatch(), slow, memory, unlike("overlap.sync_point", "a trace"))
    assert lines_of(result, "rest") == [], "of no use to who wants to know what happened"
    (rest,) = lines_of(result, "rest", verbose=True)
    assert rest.endswith(" causes ruled out; 3 of other kinds could not be decided")
    assert lines_of(result, "needed") == [], "neither is about a hang, and the cause is sure"
    whole = render(result, columns=None, colour=False, verbose=True)
    assert "a trace (for overlap.skew, overlap.sync_point)" in whole and "a snapshot (for memory.leak)" in whole


def test_advice_is_about_the_trouble_that_was_found() -> None:
    open_ones = (unlike("hang.rank_killed", "the launcher's log"), unlike("overlap.skew", "a trace"))
    doubtful = report(replace(mismatch(), confidence=0.6), *open_ones)
    assert lines_of(doubtful, "needed") == ["the launcher's log"]
    (rest,) = lines_of(doubtful, "rest", verbose=True)
    assert "; 1 of this kind and 1 of other kinds could not be decided" in rest
    sure = report(mismatch(), *open_ones)
    assert lines_of(sure, "needed") == []
    setting = replace(finding("env.invalid_value"), confidence=0.6)
    assert lines_of(report(setting, unlike("env.contradiction", "NCCL_DEBUG=INFO")), "needed") == []


def test_the_first_line_always_says_how_sure_it_is() -> None:
    for confidence, said in ((1.0, "certain"), (0.97, "97% sure")):
        result = report(replace(mismatch(), confidence=confidence))
        first = render(result, columns=None, colour=False).splitlines()[0]
        assert first.endswith(f"[hang.collective_mismatch, {said}]")


def test_causes_that_lack_the_same_evidence_are_folded_in_the_tree() -> None:
    causes = ("overlap.host_bound", "overlap.sync_point", "overlap.data_bound", "overlap.pause")
    alike = [Finding(cause=cause, status="undecided", facts=Text("No trace.")) for cause in causes]
    text = render(report(mismatch(), *alike), columns=None, colour=False, verbose=True)
    assert "[?] The device waits for its host (or) - all 4 causes undecided: No trace." in text
    mixed = render(
        report(mismatch(), *alike[:2], unlike("overlap.data_bound")), columns=None, colour=False, verbose=True
    )
    assert "[?] the host launches too slowly [overlap.host_bound] - undecided: No trace." in mixed


def test_the_explanation_of_what_a_rank_does_is_told_once(tmp_path: Path) -> None:
    aside = "which leaves no frame: a lock, a file, a sleep, or computing"
    for name, content in late_host().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(data.replace(b"/usr/lib/python3.11/queue.py", b"/job/mine.py"))
    text = render(diagnose(tmp_path), columns=None, colour=False)
    stack = "rank 2: in user code or a C call from it (mine.py:171 in get)"
    assert text.count(aside) == 1 and f"seen    stacks/rank_00002.txt: {stack}" in text
    assert text.count("is in user code") == 3


def test_the_place_of_a_victim_is_called_so() -> None:
    lost = finding("hang.host_stall", ranks=(0,), victims=(1,), where=(Where(1, "a.py", 3, "f", "waits in barrier"),))
    assert lines_of(report(lost), "victim") == ["a.py:3 in f (rank 1), waits in barrier"]
    assert lines_of(report(lost), "where") == []


def test_what_loses_nothing_is_a_note() -> None:
    clock = Problem("flight", "rank_1", "its clock is 7.0 s ahead", harmless=True)
    result = report(mismatch(), problems=[clock, Problem("flight", "rank_2", "it is empty")])
    assert lines_of(result, "unread", verbose=True) == ["flight: rank_2: it is empty"]
    assert lines_of(result, "note", verbose=True) == ["flight: rank_1: its clock is 7.0 s ahead"]
    assert lines_of(result, "note") == []
    assert "note: rank_1: its clock is 7.0 s ahead" in as_page(result)
    assert "note: rank\\_1: its clock" in as_markdown(result)
    (flight,) = (row for row in jsonform.as_json(result)["coverage"] if row["kind"] == "flight")
    assert (flight["problems"], flight["notes"]) == (["rank_2: it is empty"], ["rank_1: its clock is 7.0 s ahead"])
