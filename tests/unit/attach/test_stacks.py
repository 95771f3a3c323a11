"""What py-spy prints of a process, by a program that prints the like."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dtk.attach import stacks

TORCH = "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


def variable(name: str, text: str | None) -> dict[str, Any]:
    return {"name": name, "repr": text}


def frame(name: str, file: str, line: int, **variables: str | None) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line, "locals": [variable(*item) for item in variables.items()]}


def thread(*frames: dict[str, Any], os_thread_id: int = 7, active: bool = True) -> dict[str, Any]:
    return {"os_thread_id": os_thread_id, "thread_name": "MainThread", "active": active, "frames": list(frames)}


@pytest.fixture
def spied(tmp_path: Path) -> Any:
    def run(output: object, code: int = 0, errors: str = "", pid: int = 7) -> stacks.Dump:
        text = output if isinstance(output, str) else json.dumps(output)
        program = tmp_path / "py-spy"
        body = f"import sys\nprint({text!r})\nprint({errors!r}, file=sys.stderr)\nsys.exit({code})\n"
        program.write_text(f"#!{sys.executable} -S\n{body}")
        program.chmod(0o755)
        return stacks.dump(str(program), pid, "python")

    return run


def test_threads_are_printed_as_py_spy_prints_them(spied: Any) -> None:
    other = thread(frame("wait", "threading.py", 331), os_thread_id=8, active=False)
    dump = spied([thread(frame("step", "/job/train.py", 12), frame("??", "", 0)), other])
    assert dump.text == (
        'Thread 7 (active): "MainThread"\n    step (/job/train.py:12)\n    ?? (?)\n'
        'Thread 8 (idle): "MainThread"\n    wait (threading.py:331)\n'
    )
    assert dump.problem == ""


@pytest.mark.parametrize(
    ("variables", "outer", "call"),
    [
        ({"group": "None", "src": "2"}, {}, {"op": "recv", "group": "default", "src": "2"}),
        ({"group": "<ProcessGroup>"}, {}, {"op": "recv", "group": "other"}),
        ({"group": "<ProcessGroup>"}, {"kwargs": '{"tensor": 1}'}, {"op": "recv", "group": "default"}),
        ({"src": "x", "dst": None}, {"kwargs": '{"group": <ProcessGroup>}'}, {"op": "recv", "group": "other"}),
    ],
)
def test_the_call_that_the_main_thread_is_in(spied: Any, variables: Any, outer: Any, call: dict[str, str]) -> None:
    """`group` is filled in later: what was given stands in the decorator's frame."""
    frames = [frame("recv", TORCH, 3, **variables), frame("wrapper", TORCH, 9, **outer), frame("f", "/job/a.py", 1)]
    assert spied([thread(*frames)]).call == call


def test_numbers_of_the_scripts_own_frames(spied: Any) -> None:
    own = frame("train", "/job/train.py", 12, step="41", word="'x'", epoch="3", huge="1" * 10, negative="-1", none=None)
    library = frame("run", "/lib/python3.12/site-packages/lib/x.py", 3, count="7")
    native = frame("loop", "libtorch.so", 0, n="7")
    dump = spied([thread(native, library, own)])
    assert dump.counters == [{"file": "/job/train.py", "function": "train", "numbers": {"step": 41, "epoch": 3}}]


def test_the_main_threads_call_goes_first_and_only_its_numbers_count(spied: Any) -> None:
    other = thread(frame("recv", TORCH, 3), frame("f", "/job/a.py", 1, n="7"), os_thread_id=8)
    dump = spied([other, thread(frame("join", "/job/a.py", 2))])
    assert (dump.call, dump.counters) == ({"op": "recv", "group": "default"}, [])
    assert spied([other, thread(frame("send", TORCH, 3))]).call["op"] == "send"


def test_the_outermost_variable_that_holds_the_group_names_it(spied: Any) -> None:
    """A thread calls a function with a group that the main thread's function holds."""
    tensor, group = "<Tensor at 0x7f01>", "<ProcessGroup at 0x7f02>"
    call = frame("all_reduce", TORCH, 3, tensor=tensor, group=group)
    wrapper = frame("wrapper", TORCH, 9, kwargs=f'{{"tensor": {tensor}, "group": {group}}}')
    inner = thread(call, wrapper, frame("reduce", "/job/a.py", 4, value=tensor, group=group), os_thread_id=8)
    outer = thread(frame("join", "/lib/python3.12/threading.py", 1, it=group), frame("train", "/job/a.py", 9, tp=group))
    assert spied([inner, outer]).call == {"op": "all_reduce", "group": "other", "name": "train:tp"}
    assert spied([inner]).call["name"] == "reduce:group"


@pytest.mark.parametrize(
    ("output", "code", "errors", "problem"),
    [
        ("", 1, "\nError: Permission denied (os error 13)\nReason: x", "Permission denied (os error 13)"),
        ("", 3, "", "exit code 3"),
        ("{", 0, "", "py-spy: Expecting property name"),
    ],
)
def test_a_look_that_failed_says_why(spied: Any, output: str, code: int, errors: str, problem: str) -> None:
    dump = spied(output, code, errors)
    assert dump.text == ""
    assert dump.problem.startswith(problem)


def test_no_program_and_one_that_gives_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stacks.dump(str(tmp_path / "absent"), 7, "native").problem.startswith("py-spy: ")
    monkeypatch.setattr(stacks, "TIMEOUT_S", 0.05)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    assert stacks.dump(str(slow), 7, "python").problem == "py-spy did not answer within 0.05 s"


def test_what_to_type_where_it_may_not_look() -> None:
    assert stacks.rights("Failed to find python version") == "Failed to find python version"
    for problem in ("Permission denied (os error 13)", "EPERM: Operation not permitted"):
        assert "dtk attach" in stacks.rights(problem)


def test_py_spy_beside_the_interpreter_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert stacks.spy() is None
    (tmp_path / "bin").mkdir()
    for folder in (tmp_path / "bin", tmp_path):
        (folder / "py-spy").write_text("#!/bin/sh\n")
        (folder / "py-spy").chmod(0o755)
        assert stacks.spy() == str(folder / "py-spy")
