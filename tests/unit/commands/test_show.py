"""`dtk show`: one run, one key of it, and a run of somebody else."""

import json
import os
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.commands.main import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(tmp_path / "runs" / "one")
    when = "2026-01-02T03:04:05+00:00"
    write_json(paths.status, Status(state="finished", started=when, updated=when, step=7))
    return paths.root


def test_how_a_run_stands_in_words_and_as_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "last"]) == 0
    text = capsys.readouterr().out
    assert "finished" in text and "owner" not in text
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["step"] == 7


def test_a_run_of_another_user_is_told_as_such(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: run.stat().st_uid + 1)
    assert main(["show", str(run)]) == 0
    assert "not you: --rerun and resume= refuse it without --trust\n" in capsys.readouterr().out


def test_no_such_run_or_key_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", "absent"], ["show", "last", "--why", "train.steps"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith("dtk: ") and error.count("\n") == 1
