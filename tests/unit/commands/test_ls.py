"""`dtk ls`: which runs are listed, in which order, and what an empty folder says."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.commands.main import main


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    states = (("a", "finished", "05"), ("b", "failed", "04"), ("c", "finished", "03"))
    for name, state, hour in states:
        when = f"2026-01-02T{hour}:00:00+00:00"
        write_json(RunPaths(tmp_path / "runs" / name).status, Status(state=state, started=when, updated=when))
    return tmp_path / "runs"


def names(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]


def test_newest_first_reversed_limited_and_chosen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {(): "abc", ("--reverse",): "cba", ("--limit", "2"): "ab", ("--state", "finished"): "ac"}
    for options, expected in listed.items():
        assert main(["ls", *options]) == 0
        assert names(capsys) == list(expected)


def test_json_has_the_same_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(runs), "--json", "--failed"]) == 0
    assert "b" in capsys.readouterr().out
    assert main(["ls", "--json", "--limit", "1"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert Path(only["path"]).name == "a"


def test_nothing_to_list_says_why_on_standard_error(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "empty").mkdir()
    assert main(["ls", "runs/empty"]) == 0
    assert "no runs in runs/empty yet; make one: " in capsys.readouterr().err
    assert main(["ls", "--state", "oom"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "none of the 3 runs in runs matches" in captured.err
