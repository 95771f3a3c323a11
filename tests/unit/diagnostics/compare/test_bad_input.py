"""What cannot be compared is one line; what is hostile stays text, whatever the form."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diagnostics.compare import jsonform, markdown, page, terminal
from diagnostics.compare.compare import compare
from diagnostics.errors import DiagnosticsError
from tests.unit.diagnostics.compare.folders import make_run

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
    found = compare(runs)
    assert [len(one.compared) for one in found.variants] == [1, 1]
    jsonform.dumps(found)


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
    found = compare(runs)
    assert not found.fair
    for form in (jsonform.dumps, markdown.render, page.render):
        assert form(found)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a"),
        make_run(tmp_path, "b", change={"strategy": {"name": HOSTILE}}, reason=HOSTILE, data={"tokenizer": HOSTILE}),
        make_run(tmp_path, "c", change={"strategy": {"name": "z"}}, state="failed", reason=HOSTILE, times_s=[]),
    ]
    found = compare(runs)
    html = page.render(found)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in terminal.render(found, columns=100, colour=False)
    text = markdown.render(found)
    assert re.search(r"(?<!\\)[<|\[]script|(?<!\\)\[x", text) is None
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (4, 6, 8) for line in rows), rows
    json.loads(jsonform.dumps(found))
