"""The line on stderr while something takes long."""

import io
import re
import time

import pytest

from dtk.plan import busy
from dtk.plan.busy import Busy


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
    monkeypatch.setattr(busy, "AFTER_S", 0.01)
    monkeypatch.setattr(busy, "_EVERY_S", 0.01)
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        with Busy("planning", out):
            time.sleep(0.1)
    assert plain.getvalue() == "dtk: planning ...\n"
    assert re.match(r"\rdtk: planning \.\.\. 0 s", terminal.getvalue())
    assert terminal.getvalue().endswith("\r" + " " * len("dtk: planning ... 0 s") + "\r")
