"""`dtk demo`: three faults are run and diagnosed as typed, and the reports are named."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtk.commands import demo
from dtk.commands.main import main


@pytest.mark.parametrize(("diagnosis", "code"), [(1, 0), (0, 1)])
def test_each_part_is_run_and_diagnosed(
    diagnosis: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed: list[list[str]] = []

    def play(command: list[str], check: bool) -> Any:
        typed.append(command[3:])
        if command[3] == "run":
            (tmp_path / command[4].partition("=")[2]).mkdir()
            return subprocess.CompletedProcess(command, 1)
        page = Path(command[4]) / "report" / "report.html"
        page.parent.mkdir()
        page.touch()
        return subprocess.CompletedProcess(command, diagnosis)

    monkeypatch.setattr(subprocess, "run", play)
    assert main(["demo", "--runs-folder", str(tmp_path), "--no-open"]) == code
    assert [words[0] for words in typed] == ["run", "diagnose"] * 3
    assert [words[1] for words in typed[::2]] == [f"fault={fault}" for fault in demo.PARTS]
    out = capsys.readouterr().out
    assert out.count("report.html") == 3 and "[3/3] low overlap" in out


def test_a_fault_that_leaves_no_folder_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 2))
    assert main(["demo", "--runs-folder", str(tmp_path / "none")]) == 2
    assert "fault=extra_collective left no run folder" in capsys.readouterr().err


def test_a_screen_is_a_terminal_of_a_machine_with_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "stdout", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setenv("DISPLAY", ":0")
    assert demo.has_screen()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1")
    assert not demo.has_screen()
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.delenv("DISPLAY")
    assert not demo.has_screen()
