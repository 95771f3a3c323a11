"""Options of `dtk diagnose` that belong together, and what a path may be."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.evidence.limits import Limits
from dtk.commands.diagnose import find
from dtk.commands.main import _parser, main
from dtk.errors import DtkError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "what is to be diagnosed? - "),
        (["nowhere"], "no run "),
        (["--json", "--format", "dot", "."], "--json and --format dot contradict each other - give one of them"),
        (["--verify-fix", "--json", "."], "--verify-fix prints a comparison for people: and --json and --format print"),
        (["--verify-fix", "--format", "markdown", "."], "--verify-fix prints a comparison for people"),
        (["--format", "pdf", "."], "argument --format: invalid choice: 'pdf'"),
        (["--limit-scale", "0", "."], "argument --limit-scale: '0' is no number above 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dtk: {message}") and captured.out == ""


def test_a_path_a_run_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunPaths(tmp_path / "runs" / "20260101-a")
    write_json(run.status, Status(state="finished", started="2026-01-01T00:00:00+00:00"))
    assert find(str(tmp_path)) == tmp_path
    assert find("last") == find("20260101") == Path("runs/20260101-a")
    for name in ("", "20990101"):
        with pytest.raises(DtkError) as caught:
            find(name)
        assert "give a folder, a file, a run id or last" in caught.value.fix


def test_an_html_option_without_a_file_leaves_the_path_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "left").mkdir()
    log = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nKeyError: 5\n'
    (tmp_path / "left" / "train.log").write_text(log, encoding="utf-8")
    main(["diagnose", "--html", "left"])
    assert (tmp_path / "dtk-report.html").is_file() and "dtk-report.html" in capsys.readouterr().out


def test_the_help_names_the_limits_as_they_are() -> None:
    _, commands = _parser()
    text = " ".join(commands.choices["diagnose"].format_help().split())
    limits = Limits()
    assert f"{limits.whole_bytes >> 20} MiB for a dump" in text and f"{limits.files:,} files" in text
    assert f"{limits.spans:,} device events" in text and "{w" not in text
