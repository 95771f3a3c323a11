"""What a program's own text says of the place of a line, seen from the loop that other lines are in."""

import os
from pathlib import Path

import pytest

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.loop_exit import source_says
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
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


@pytest.mark.parametrize(
    ("around", "leaves", "is_other"),
    [
        ("with timer:", "return", True), ("with timer:", "pass", False), ("with timer:", "raise", False),
        ("for _ in x:", "continue", True), ("for _ in x:", "return", False), ("for _ in x:", "break", False),
    ],
)  # fmt: skip
def test_what_follows_a_branch_that_leaves_is_its_other_branch(
    tmp_path: Path, around: str, leaves: str, is_other: bool
) -> None:
    path = tmp_path / "job.py"
    path.write_text(f"def f(rank):\n  {around}\n    if rank == 0:\n      g()\n      {leaves}\n    h()\n  k()\n")
    assert source_text.exclusive(str(path), 4, 6, 1e12) is source_text.exclusive(str(path), 6, 4, 1e12) is is_other
    assert source_text.exclusive(str(path), 4, 7, 1e12) is (is_other and leaves == "return")


@pytest.mark.parametrize(("handler", "skips"), [("pass", True), ("log()", True), ("raise", False), ("return", False)])
def test_a_caught_exception_skips_a_line_as_a_condition_does(tmp_path: Path, handler: str, skips: bool) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        "def f():\n    for _ in range(3):\n        try:\n            load()\n            g()\n"
        f"        except ValueError:\n            {handler}\n    h()\n"
    )
    assert source_text.condition(Frame(str(path), 5, "f"), 1e12, 8) == (("unless", 6) if skips else ("none", 0))
    assert source_text.condition(Frame(str(path), 5, "f"), 1e12, 4) == ("none", 0), "both are in it"
    elsewhere = source_text.condition(Frame(str(path), 5, "f"), 1e12, 99)
    assert elsewhere == (("none", 0) if handler == "raise" else ("unless", 6)), "the function returns to the caller"


def test_the_condition_that_names_the_rank_decides(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("def f(step, rank):\n    if rank < 2:\n        if step == 5:\n            g()\n    h()\n")
    assert source_text.condition(Frame(str(path), 4, "f"), 1e12, 5) == ("some", 2)
    path = tmp_path / "inner.py"
    path.write_text("def f(step, x):\n    if step == 5:\n        if x.rank < 2:\n            g()\n    h()\n")
    assert source_text.condition(Frame(str(path), 4, "f"), 1e12, 5) == ("some", 3)


@pytest.mark.parametrize(("line", "condition"), [(LOG, "some"), (SAVE, "some"), (FORWARD, "none"), (EVALUATE, "none")])
def test_a_branch_within_the_innermost_loop(program: str, line: int, condition: str) -> None:
    assert source_text.condition(Frame(program, line, "train"), 2e9)[0] == condition
    assert source_text.condition(Frame("/no/such/file.py", line, "train"), 2e9)[0] == "none"
    assert source_text.condition(Frame(program, LOG, "train"), 2e9, LOG)[0] == "none", "both lines are in it"


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0", "not rank", "dist.get_rank() == 0", "0 == self.global_rank", "args.local_rank in [-1, 0]",
        "accelerator.is_main_process", "trainer.is_world_process_zero()", "fabric.is_global_zero and step",
        "int(os.environ['RANK']) == 0", "not self.dp_rank != 0", "step == 5 and rank == 1", "not (step or rank != 1)",
    ],
)  # fmt: skip
def test_a_condition_on_one_rank(tmp_path: Path, test: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(f"def f():\n    if {test}:\n        for _ in range(3):\n            g()\n    g()\n")
    assert source_text.condition(Frame(str(path), 4, "f"), 1e12)[0] == "one rank"
    assert source_text.condition(Frame(str(path), 5, "f"), 1e12)[0] == "none"
    path = tmp_path / "skips.py"
    path.write_text(
        f"def f():\n    if {test}:\n        return\n    g()\n"
        f"def h():\n    if not ({test}):\n        return\n    g()\n"
        f"def i():\n    if {test}:\n        g()\n    else:\n        g()\n"
    )
    conditions = {line: source_text.condition(Frame(str(path), line, "f"), 1e12)[0] for line in (4, 8, 11, 13)}
    assert conditions == {4: "all but one", 8: "one rank", 11: "one rank", 13: "all but one"}


@pytest.mark.parametrize(
    "test",
    [
        "world_size == 1", "step == 0", "lora_rank == 8", "rank in members", "rank < last", "step or rank == 0",
        "rank in (0, 1)", "rank not in [0, 1]", "rank in {2, 3} and ready",
    ],
)  # fmt: skip
def test_a_condition_on_anything_else(tmp_path: Path, test: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(f"def f():\n    if {test}:\n        g()\n")
    assert source_text.condition(Frame(str(path), 3, "f"), 1e12)[0] == "some"
    path = tmp_path / "skips.py"
    path.write_text(f"for _ in range(3):\n    if not ({test}):\n        continue\n    g()\n")
    assert source_text.condition(Frame(str(path), 4, "<module>"), 1e12)[0] == "unless"


def test_the_cases_of_a_match_are_branches(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        "def f():\n    match job:\n        case 'a':\n            for _ in range(3):\n                g()\n"
        "                if rank == 0:\n                    h()\n        case _ if step:\n            h()\n"
        "    match rank:\n        case 0:\n            h()\n        case 1 | 2:\n            h()\n"
    )
    conditions = {line: source_text.condition(Frame(str(path), line, "f"), 1e12)[0] for line in (5, 7, 9, 12, 14)}
    assert conditions == {5: "none", 7: "one rank", 9: "some", 12: "one rank", 14: "some"}
    assert source_text.exclusive(str(path), 5, 9, 1e12) and not source_text.exclusive(str(path), 5, 7, 1e12)


def test_names_that_loops_bind_and_whether_they_may_be_left_early(program: str) -> None:
    assert source_text.loop_variables(program, (FORWARD,), 2e9) == (["step", "batch"], True)
    assert source_text.loop_variables(program, (FORWARD, EVALUATE), 2e9) == (["step", "batch"], True)
    assert source_text.loop_variables(program, (FORWARD, BACKWARD), 2e9) == ([], False), "a loop around both"
    assert source_text.loop_variables(program, (GATHER,), 2e9) == ([], False), "a while loop binds none"
    assert source_text.loop_variables(program, (SETUP,), 2e9) == ([], False)


def test_the_lines_that_call_a_function(program: str) -> None:
    around = Frame(program, FORWARD, "train")
    assert source_text.callers("evaluate", around, 2e9) == [Frame(program, EVALUATE, "train")]
    assert source_text.callers("nobody", around, 2e9) == [] == source_text.callers("log", Frame("/o.py", 3, "f"), 2e9)
    assert source_text.callers("a.log", around, 9e8) == [], "the text is younger"
    names = [call.function for call in source_text.callers("Job.train", Frame(program, TEARDOWN, "main"), 2e9)]
    assert names == ["main", "", ""], "the others are in another function"


@pytest.mark.parametrize(
    ("line", "function", "place"),
    [
        (16, "evaluate", "outside"), (16, "log", "inside"), (16, "nobody", "unknown"), (TEARDOWN, "main", "outside"),
        (CALL, "main", "unknown"), (28, "twice", "unknown"), (BARRIER, "backward", "inside"),
    ],
)  # fmt: skip
def test_a_call_of_which_no_caller_was_recorded(program: str, line: int, function: str, place: str) -> None:
    body = [call(program, FORWARD, "train"), call(program, BACKWARD, "train")]
    assert source_says(call(program, line, function), body) == place


def call(file: str, line: int, function: str) -> Call:
    wire = Described(Wire("all_reduce", (1,), ()), "all_reduce")
    return Call(GroupKey("gloo", "0", ""), 1, wire, False, 2e9, stack=(Frame(file, line, function),))


def test_a_function_that_handles_a_signal_runs_only_where_the_signal_comes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def save(sig, frame):\n    barrier()\n\ndef other():\n    barrier()\n\nsignal.signal(signal.SIGUSR1, save)\n"
    )
    os.utime(path, (1, 1))
    assert source_text.condition(Frame(str(path), 2, "save"), 1e12)[0] == "some"
    assert source_text.condition(Frame(str(path), 5, "other"), 1e12)[0] == "none"


@pytest.mark.parametrize(
    ("sets", "condition"),
    [
        ("me = dist.get_rank()", "one rank"),
        ('n, me = 4, int(os.environ["RANK"])', "one rank"),
        ("me = int(os.getenv('LOCAL_RANK', '0'))", "one rank"),
        ("me = dist.get_rank() % 2", "some"),
        ("me = dist.get_rank()\nfor me in range(4): pass", "some"),
        ("me = dist.get_world_size()", "some"),
    ],
)
def test_a_variable_that_is_only_ever_set_to_the_rank_selects_one(tmp_path: Path, sets: str, condition: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{sets}\nif done and me == 0:\n    save()\n")
    os.utime(file, (1, 1))
    line = sets.count("\n") + 3
    result = source_text.condition(Frame(str(file), line, "<module>"), 2.0)[0]
    assert result == condition
