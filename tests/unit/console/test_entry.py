"""How a program ends: one line and exit code 2 for what the user can fix, 130 for Ctrl-C, silence for `| head`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from diagnostics.contract.errors import DiagnosticsError
from dtk.console.entry import ended
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError, OwnRankError


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def run() -> NoReturn:
        raise error

    return run


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def test_the_exit_code_is_the_programs_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert [ended(lambda: 0), ended(lambda: 7)] == [0, 7]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DtkError("no such thing", "it is gone", "make it"), "dtk: no such thing: it is gone - make it\n"),
        (DiagnosticsError("nothing to read", "name a folder"), "dtk: nothing to read - name a folder\n"),
        (DtkError("two\nlines"), "dtk: two lines\n"),
    ],
)
def test_what_the_user_can_fix_is_one_line(error: Exception, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(error)) == USER_ERROR
    assert capfd.readouterr() == ("", line)


def test_only_one_rank_says_what_all_were_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    assert ended(raising(DtkError("for all"))) == USER_ERROR
    assert ended(raising(KeyboardInterrupt())) == INTERRUPTED
    assert capfd.readouterr().err == ""
    assert ended(raising(OwnRankError("of this rank"))) == USER_ERROR
    assert capfd.readouterr().err == "dtk: of this rank\n"


def test_ctrl_c_says_what_it_came_before(capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(KeyboardInterrupt()), "before the first step") == INTERRUPTED
    assert ended(raising(KeyboardInterrupt())) == INTERRUPTED
    assert capfd.readouterr().err == "dtk: stopped before the first step\ndtk: stopped\n"


def test_a_reader_that_has_gone_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert ended(raising(BrokenPipeError())) == 0
        assert stderr.closed, "what the interpreter says of it at its end goes nowhere"


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        ended(raising(ZeroDivisionError()))
