"""The first screen of a log that decides nothing: who waits, who is silent, what is likely, what would decide it."""

from pathlib import Path

import jsonschema
import pytest

from diagnostics.diagnose import diagnose
from diagnostics.report import html, jsonform, markdown, terminal
from diagnostics.report.diagnosis import document
from tests.unit.diagnostics.analysis.stall.test_watchdog import hung, in_group
from tests.unit.diagnostics.report.test_jsonform import SCHEMA

LOG = in_group(0, "15", 0, seq=434159, numel=2) + in_group(2, "15", 2, seq=434159, numel=2)


def lines(folder: Path, text: str) -> list[str]:
    (folder / "job.log").write_text(text)
    shown = terminal.render(document(diagnose(folder), brief=True), columns=None, colour=False)
    return [line.rstrip() for line in shown.splitlines()]


def test_the_first_screen_is_an_answer(tmp_path: Path) -> None:
    shown = lines(tmp_path, LOG)
    assert shown[0] == "UNDECIDED: ranks 0 and 2 wait in all_reduce of 2 elements; no cause is confirmed"
    assert shown[1] == "waits   ranks 0 and 2: all_reduce of 2 elements, #434,159, group 15, for 600 s since 09:50:00"
    maybe = [line for line in shown if line.startswith("maybe")]
    assert 1 <= len(maybe) <= 3 and "only some ranks issued a collective [hang.conditional_collective]: " in maybe[0]
    (decide,) = (line for line in shown if line.startswith("decide"))
    assert "TORCH_FR_BUFFER_SIZE" in decide
    assert not any("record.level" in line or "ProcessGroupNCCL" in line for line in shown)


def test_ranks_that_left_no_line_are_named(tmp_path: Path) -> None:
    text = hung(1, op="_ALLGATHER_BASE").replace("NumelOut=1024", "NumelOut=4096")
    assert "silent  ranks 0, 2 and 3 leave no line" in lines(tmp_path, text)


def test_an_abort_without_a_word_asks_for_its_stderr(tmp_path: Path) -> None:
    shown = lines(tmp_path, "E1 torch/x/api.py:874] failed (exitcode: -6) local_rank: 1 (pid: 57) of binary: python\n")
    assert shown[0] == "UNDECIDED: rank 1 aborted, and no line says why"
    assert any(line.startswith("decide  the stderr of rank 1") for line in shown)


def test_every_form_has_it(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LOG)
    report = diagnose(tmp_path)
    value = jsonform.as_json(report)
    jsonschema.validate(value, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert [one["cause"] for one in value["suspicions"]] == [one.cause for one in report.suspicions] != []
    assert value["measures"]["waiting"]["waits"][0]["ranks"] == [0, 2]
    for text in (markdown.render(document(report)), html.render(document(report))):
        assert "hang.conditional_collective" in text and "a metric, a flag or a barrier" in text


@pytest.mark.parametrize("text", [LOG + "[rank1]: MemoryError\n", hung(0) + hung(1, op="BROADCAST") + hung(2)])
def test_a_report_with_a_cause_has_no_suspicions(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    report = diagnose(tmp_path)
    assert bool(report.root_causes) != bool(report.suspicions)
