"""What a program's own text says of the place of a line, seen from the loop that other lines are in."""

import os
from pathlib import Path

import pytest

from diagnostics.analysis import source_text
from diagnostics.evidence.model import Frame

TEXT = """\
def train(loader):
    for step, batch in enumerate(loader):
        forward()
        if step % 10 == 0:
            log()
        else:
            skip()
        if done:
            save()
            break
        backward()
    evaluate()


def evaluate():
    while more():
        gather()
    barrier()


def main():
    setup()
    train(None)
    teardown()


def twice():
    train(None)
    train(None)
"""
FORWARD, LOG, SKIP, SAVE, BACKWARD, EVALUATE, GATHER, BARRIER, SETUP, CALL, TEARDOWN = (
    3,
    5,
    7,
    9,
    11,
    12,
    17,
    18,
    22,
    23,
    24,
)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    os.utime(path, (1e9, 1e9))
    return str(path)


@pytest.mark.parametrize(
    ("inside", "line", "place"),
    [
        ((FORWARD, BACKWARD), LOG, "inside"),
        ((FORWARD,), BACKWARD, "inside"),
        ((FORWARD, BACKWARD), SAVE, "leaves"),
        ((FORWARD, BACKWARD), EVALUATE, "outside"),
        ((EVALUATE,), FORWARD, "no loop"),
        ((FORWARD,), GATHER, "unknown"),
        ((), FORWARD, "unknown"),
    ],
)
def test_where_a_line_stands(program: str, inside: tuple[int, ...], line: int, place: str) -> None:
    assert source_text.place(program, inside, line, 2e9) == place


def test_text_that_is_younger_than_the_call_or_not_here_says_nothing(program: str) -> None:
    assert source_text.place(program, (FORWARD,), LOG, 9e8) == "unknown"
    assert source_text.place(program, (FORWARD,), LOG, None) == "unknown"
    assert source_text.place("/no/such/file.py", (FORWARD,), LOG, 2e9) == "unknown"
    broken = Path(program).with_name("broken.py")
    broken.write_text("def broken(:")
    assert source_text.place(str(broken), (FORWARD,), LOG, 4e9) == "unknown"


def test_an_if_and_its_else(program: str) -> None:
    assert source_text.exclusive(program, LOG, SKIP, 2e9) and source_text.exclusive(program, SKIP, LOG, 2e9)
    assert not source_text.exclusive(program, LOG, SAVE, 2e9)
    assert not source_text.exclusive(program, LOG, SKIP, 9e8)


@pytest.mark.parametrize(("line", "conditional"), [(LOG, True), (SAVE, True), (FORWARD, False), (EVALUATE, False)])
def test_a_branch_within_the_innermost_loop(program: str, line: int, conditional: bool) -> None:
    assert source_text.conditional(Frame(program, line, "train"), 2e9) == conditional
    assert not source_text.conditional(Frame("/no/such/file.py", line, "train"), 2e9)


def test_names_that_loops_bind_and_whether_they_may_be_left_early(program: str) -> None:
    assert source_text.loop_variables(program, (FORWARD,), 2e9) == (["step", "batch"], True)
    assert source_text.loop_variables(program, (GATHER,), 2e9) == ([], False), "a while loop binds none"
    assert source_text.loop_variables(program, (SETUP,), 2e9) == ([], False)


def test_where_a_function_is_called_whose_callers_were_not_recorded(program: str) -> None:
    loop = [Frame(program, FORWARD, "train"), Frame(program, BACKWARD, "train")]
    assert source_text.called(program, loop, "evaluate", 2e9) == "outside"
    assert source_text.called(program, loop, "log", 2e9) == "inside"
    assert source_text.called(program, loop, "nobody", 2e9) == "unknown"
    assert source_text.called(program, [Frame("/other.py", 3, "f")], "log", 2e9) == "unknown"


def test_a_call_in_the_function_that_calls_the_loops_one(program: str) -> None:
    loop = [Frame(program, FORWARD, "train")]
    assert source_text.calls_the_loop(Frame(program, TEARDOWN, "main"), loop, 2e9) == "outside"
    assert source_text.calls_the_loop(Frame(program, CALL, "main"), loop, 2e9) == "unknown", "it is the call itself"
    assert source_text.calls_the_loop(Frame(program, FORWARD, "train"), loop, 2e9) == "unknown"
    assert source_text.calls_the_loop(Frame(program, 28, "twice"), loop, 2e9) == "unknown", "it is called twice"
    assert source_text.calls_the_loop(Frame(program, BARRIER, "evaluate"), loop, 2e9) == "unknown"
