"""What is said on stderr while something takes long."""

import io
import time

import pytest

from dtk.console import progress
from dtk.console.progress import Busy, Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_is_quick_says_nothing(stream: type[io.StringIO]) -> None:
    out = stream()
    with Busy("planning", out):
        pass
    assert out.getvalue() == ""


def test_what_takes_long_says_so_once_where_it_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.02)
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        with Busy("planning", out) as busy:
            time.sleep(0.15)
            busy.now("comparing")
            time.sleep(0.15)
    assert plain.getvalue() == "dtk: planning ...\ndtk: comparing ...\n"
    assert terminal.getvalue().startswith("\r\x1b[Kdtk: planning ... 0 s")
    assert "\r\x1b[Kdtk: comparing ... 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_what_is_not_to_be_shown_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.01)
    out = Terminal()
    with Busy("planning", out, shown=False):
        time.sleep(0.1)
    assert out.getvalue() == ""


def test_progress_begins_late_writes_seldom_and_shows_control_characters() -> None:
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        progress = Progress(after_s=2.0, terminal_only=True, stream=stream)
        progress.show("reading a")
        assert stream.getvalue() == ""
        progress.from_s -= 3
        for n in range(100):
            progress.show(f"reading \x1b[31m {n}")
        progress.end()
    assert pipe.getvalue() == ""
    assert screen.getvalue().startswith("\r\x1b[Kdtk: reading ?[31m 0") and screen.getvalue().count("reading") < 5
    assert screen.getvalue().endswith("\r\x1b[K")


def test_a_file_gets_whole_lines_now_and_then() -> None:
    pipe = io.StringIO()
    progress = Progress(stream=pipe)
    for n in range(100):
        progress.show(f"reading {n}")
    progress.line("read")
    progress.end()
    assert pipe.getvalue() == "dtk: reading 0\ndtk: read\n"
