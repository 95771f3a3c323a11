"""`dtk doctor`: which checks are made, in which form they are told, and the exit code."""

import json
import signal
from pathlib import Path

import pytest

from dtk.commands.main import main
from dtk.doctor import registry
from dtk.doctor.model import Check, Finding, Result, judged


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    bad = judged([Finding("failure", "it is broken")])
    two = (
        Check("good", "topic", "what is fine", lambda scope: Result("ok", f"runs go to {scope.runs_folder}")),
        Check("bad", "topic", "what is not", lambda scope: bad),
    )
    monkeypatch.setattr(registry, "CHECKS", two)


def test_a_list_makes_no_check(checks: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--list", "--only", "topic"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["name", "good", "bad"]
    assert main(["doctor", "--list", "--only", "nodes", "--json"]) == 0
    assert {row["topic"] for row in json.loads(capsys.readouterr().out)} == {"nodes"}


@pytest.mark.parametrize(("only", "code"), [("good", 0), ("bad", 1), ("topic", 1)])
def test_a_failure_is_exit_code_1(checks: None, only: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["doctor", "--only", only, "--runs-folder", "here", "--json"]) == code
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    summaries = {check["name"]: check["summary"] for check in node["checks"]}
    assert summaries.get("good", "runs go to here") == "runs go to here" and ("bad" in summaries) is bool(code)
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_cannot_be_asked_is_one_line(checks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "goood"], ["--runs-folder", " "], ["--only", "good", "--skip", "topic"]):
        assert main(["doctor", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
