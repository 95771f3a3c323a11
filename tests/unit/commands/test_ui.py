"""`dtk ui`: what is served, who is told where, and when a browser is opened."""

import webbrowser
from pathlib import Path

import pytest

from dtk.commands import ui
from dtk.commands.main import main
from dtk.ui.server import Server


@pytest.mark.parametrize(("screen", "option", "opened"), [(True, (), 1), (True, ("--no-open",), 0), (False, (), 0)])
def test_it_serves_until_it_is_interrupted(
    screen: bool,
    option: tuple[str, ...],
    opened: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages: list[str] = []

    def interrupted(self: Server, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)
    monkeypatch.setattr(ui, "has_screen", lambda: screen)
    monkeypatch.setattr(webbrowser, "open", pages.append)
    assert main(["ui", str(tmp_path), "--port", "0", *option]) == 0
    err = capsys.readouterr().err
    assert f"runs in {tmp_path}: http://127.0.0.1:" in err and "Ctrl-C stops it" in err
    assert len(pages) == opened


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err
