"""One line for every problem of the user's, with what to do next."""

import ast
import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import read_table
from dtk import errors
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError, OwnRankError, ended, refused


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DtkError("what"), "what"),
        (DtkError("what", "why"), "what: why"),
        (DtkError("what", fix="fix"), "what - fix"),
        (DtkError("what", "why", "fix"), "what: why - fix"),
        (DtkError("what\n  it is", "why\t", "fix"), "what it is: why - fix"),
    ],
)
def test_the_parts_of_a_message(error: DtkError, line: str) -> None:
    assert str(error) == line


@settings(max_examples=60)
@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_a_message_is_one_printable_line_whatever_a_name_holds(what: str, why: str, fix: str) -> None:
    line = str(DtkError(what, why, fix))
    assert len(line.splitlines()) <= 1 and "\x1b" not in line


def test_an_error_crosses_processes_whole() -> None:
    error = copy.copy(OwnRankError("what", "why", "fix"))  # By `__reduce__`, as pickle does it.
    assert type(error) is OwnRankError and (error.what, error.why, error.fix) == ("what", "why", "fix")


def test_what_the_system_refuses_has_its_reason(tmp_path: Path) -> None:
    with pytest.raises(DtkError) as caught, refused("cannot read it", "choose another"):
        (tmp_path / "none").read_text(encoding="utf-8")
    assert str(caught.value) == "cannot read it: No such file or directory - choose another"
    with pytest.raises(DtkError, match="cannot read it: told by nobody"), refused("cannot read it"):
        raise OSError("told by nobody")
    with pytest.raises(ValueError, match="a defect"), refused("cannot read it"):
        raise ValueError("a defect")


def test_what_a_damaged_file_raises_is_refused_only_where_it_is_named() -> None:
    with pytest.raises(DtkError, match=r"a\.json is damaged: two lines"), refused("a.json is damaged", "", ValueError):
        raise ValueError("two\n lines")
    with pytest.raises(ValueError, match="two"), refused("a.json cannot be read"):
        raise ValueError("two")


def tables_of_errors() -> list[Path]:
    root = Path(errors.__file__).parent
    return [path for path in sorted(root.rglob("*.yaml")) if path.read_text(encoding="utf-8").count("\nerrors:\n")]


def test_a_row_of_errors_is_what_why_and_fix_filled_with_figures(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("errors:\n  large: ['{count:#rank} of {most}', too many, 'use {less}']\n")
    error = errors.Errors(str(tmp_path / "rules.py"))("large", count=2, most="1", less=lambda: "one")
    assert str(error) == "2 ranks of 1: too many - use one"
    with pytest.raises(DtkError, match="1 rank of 0"):
        errors.Errors(str(tmp_path / "rules.py")).refuse({"absent": 0, "large": [1]}, count=1, most="0", less="none")


@pytest.mark.parametrize("path", tables_of_errors(), ids=lambda path: path.stem)
def test_every_row_of_errors_is_named_in_its_module(path: Path) -> None:
    rows = read_table(path)["errors"]
    module = ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))
    named = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    calls = [
        node for node in ast.walk(module) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_errors"
    ]
    raised = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert rows and set(rows) <= named
    assert raised <= set(rows)
    assert all(1 <= len(row) <= 3 for row in rows.values())


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
