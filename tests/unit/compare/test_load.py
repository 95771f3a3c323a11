"""What cannot be compared is one line; what is hostile stays text, whatever the form."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.report.jsonform import text as json_text
from dtk.compare.compare import compare
from dtk.compare.report import as_json
from tests.unit.compare.folders import FSDP, as_markdown, as_page, in_pipe, make_run

HOSTILE = "</td><script>alert(1)</script>\x1b[2J[x](http://evil)|"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(*folders: Path) -> str:
    with pytest.raises(DiagnosticsError) as caught:
        compare(folders)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_run_is_too_few_also_when_named_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    assert "at least two" in refused(run)
    assert "at least two" in refused(run, run)
    assert "at least two" in refused()


def test_runs_of_different_tasks(tmp_path: Path) -> None:
    text = make_run(tmp_path, "a")
    labels = make_run(tmp_path, "b", change={"data.name": "classification"})
    assert "language modelling" in refused(text, labels)
    assert "classification" in refused(text, labels)


@pytest.mark.parametrize("name", ["status.json", "manifest.json", "parity.json", "summary.json"])
def test_a_newer_schema(tmp_path: Path, name: str) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b")]
    change(runs[1] / name, schema_version=2)
    assert "newer dtk" in refused(*runs)


@pytest.mark.parametrize("name", ["status.json", "manifest.json", "parity.json", "config.yaml"])
@pytest.mark.parametrize("content", ["{", "[1, 2]", "null"])
def test_a_damaged_record(tmp_path: Path, name: str, content: str) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b")]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (runs[1] / name).write_text(content)
    before[runs[1] / name] = content.encode()
    assert name in refused(*runs)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "not a run folder" in refused(make_run(tmp_path, "a"), tmp_path / "empty")
    assert "not a run folder" in refused(tmp_path / "a", tmp_path / "absent")


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b'{"step": 3, "loss": "x", "step_time_s": 0.1}\n',
        b'{"step": -3, "loss": 1.0, "step_time_s": 0.1}\n',
        b'{"step": 1' + b"0" * 400 + b', "loss": 1.0, "step_time_s": 0.1}\n',
        b'{"step": 9, "loss": 1.0, "step_time_s": 0.0, "tokens": -5, "samples_hash": "zz"}\n',
        b"[" * 100_000 + b"\n",
        b'{"step": 12, "loss": Infinity, "step_ti',
    ],
)
def test_torn_and_senseless_lines_of_metrics_cost_only_themselves(tmp_path: Path, line: bytes) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy": {"name": "fsdp"}})]
    with (runs[1] / "metrics.jsonl").open("ab") as file:
        file.write(line)
    comparison = compare(runs)
    assert [len(variant.compared) for variant in comparison.variants] == [1, 1]
    json_text(as_json(comparison))


BYTES = bytes(range(128, 256)) * 40
DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "bytes": lambda path: path.write_bytes(BYTES),
    "directory": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "loop": lambda path: path.symlink_to(path.name),
}


def damage(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    DAMAGE[kind](path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", DAMAGE)
def test_metrics_that_a_finished_run_must_have(tmp_path: Path, kind: str) -> None:
    """A failed run need not have them: it is shown, and the others are compared."""
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy.bucket_cap_mb": 1})]
    damage(runs[1] / "metrics.jsonl", kind)
    text = refused(*runs)
    assert "metrics.jsonl" in text
    assert str(runs[1]) in text
    failed = make_run(tmp_path, "c", change=FSDP, state="failed", reason="rank 1: bad")
    damage(failed / "metrics.jsonl", kind)
    comparison = compare([runs[0], failed, make_run(tmp_path, "d", change={"strategy.bucket_cap_mb": 1})])
    assert comparison.comparable
    assert any("not compared: " in note and "failed: rank 1: bad" in note for note in comparison.notes)
    named = any("metrics.jsonl" in note for note in comparison.notes)
    assert named == (kind not in ("missing", "empty"))


def test_a_run_that_recorded_nothing_may_lack_metrics(tmp_path: Path) -> None:
    off = make_run(tmp_path, "b", change={"record": {"level": "off"}})
    (off / "metrics.jsonl").unlink()
    comparison = compare([make_run(tmp_path, "a"), off])
    assert not comparison.comparable
    assert any("no measured steps" in note for note in comparison.notes)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["status.json", "config.yaml", "manifest.json", "parity.json", "summary.json"])
def test_nothing_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b")]
    damage(runs[1] / name, "pipe")
    assert name in refused(*runs)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("content", [BYTES, b"[1, 2]", None])
def test_a_damaged_plan_is_named_and_not_used(tmp_path: Path, content: bytes | None) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP, times_s=0.2)]
    damage(runs[1] / "plan.json", "pipe" if content is None else "missing")
    if content is not None:
        (runs[1] / "plan.json").write_bytes(content)
    comparison = compare(runs)
    assert any("plan.json" in note and "fsdp (b)" in note for note in comparison.notes)
    assert comparison.comparable
    # Collectives that are not known are not collectives that it does without.
    assert "all_reduce" not in comparison.verdicts[0]


@pytest.mark.parametrize("lost", [1, 3, 12])
def test_a_torn_line_costs_its_own_step_only(tmp_path: Path, lost: int) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP)]
    lines = (runs[1] / "metrics.jsonl").read_text().splitlines()
    lines[lost - 1] = f'{{"step": {lost},'
    (runs[1] / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for order in (runs, runs[::-1]):
        comparison = compare(order)
        details = {check.key: (check.status, check.detail) for check in comparison.checks}
        assert {status for status, _ in details.values()} == {"same"}
        # The samples of the step after a lost record may be those of both.
        text = "all of the first 11 steps" if lost == 12 else "10 of the first 12 steps"
        assert details["samples"][1] == f"the same in {text}"
        assert "over 11 steps that both logged" in details["losses"][1]
        assert any("1 line cannot be read" in note for note in comparison.notes)


def test_other_samples_after_a_torn_line_still_differ(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP, samples=[*range(1, 9), 99, 10, 11, 12])]
    lines = (runs[1] / "metrics.jsonl").read_text().splitlines()
    lines[2] = '{"step": 3,'
    (runs[1] / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (wrong,) = (check for check in compare(runs).checks if check.status == "differs")
    assert "step 9" in wrong.detail


def test_half_a_line_of_a_run_that_goes_on_is_no_damage(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP, state="running")]
    with (runs[1] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    assert not any("cannot be read" in note for note in compare(runs).notes)


def test_a_missing_summary_is_no_other_model(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP)]
    (runs[1] / "summary.json").unlink()
    comparison = compare(runs)
    model = next(check for check in comparison.checks if check.key == "model")
    assert (model.status, model.detail) == ("unknown", "same configuration; number of parameters not recorded by fsdp")
    assert comparison.comparable
    (runs[0] / "summary.json").write_text('{"schema_version": 1, "figures": {"parameters": 5}}')
    other = make_run(tmp_path, "c", change=FSDP)
    model = next(check for check in compare([runs[0], other]).checks if check.key == "model")
    assert (model.status, model.detail) == ("differs", "parameters ddp: 5; fsdp: 858880")


def test_senseless_values_anywhere_raise_nothing(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy": {"name": "fsdp"}})]
    change(runs[1] / "manifest.json", topology=7, hardware=[], git="x", versions=None, data=[1], created=None)
    change(runs[1] / "parity.json", initial_weights_hash={"a": 1}, master_dtype=3)
    change(runs[1] / "plan.json", traffic=[{"op": 3}, 7, None])
    change(runs[1] / "summary.json", figures=[1])
    (runs[1] / "telemetry").mkdir()
    (runs[1] / "telemetry" / "node_00000.jsonl").write_bytes(b'{"kind": "sample", "time_s": "x"}\n\xff\n[]\n')
    (runs[1] / "traces").mkdir()
    (runs[1] / "traces" / "rank_00000.json.gz").write_bytes(b"\x1f\x8bnonsense")
    comparison = compare(runs)
    assert not comparison.fair
    for form in (as_json, as_markdown, as_page):
        assert form(comparison)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a"),
        make_run(tmp_path, "b", change={"strategy": {"name": HOSTILE}}, reason=HOSTILE, data={"tokenizer": HOSTILE}),
        make_run(tmp_path, "c", change={"strategy": {"name": "z"}}, state="failed", reason=HOSTILE, times_s=[]),
    ]
    comparison = compare(runs)
    html = as_page(comparison)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in in_pipe(comparison, columns=100)
    text = as_markdown(comparison)
    assert re.search(r"(?<!\\)[<|\[]script|(?<!\\)\[x", text) is None
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (4, 6, 8) for line in rows), rows
    json.loads(json_text(as_json(comparison)))
