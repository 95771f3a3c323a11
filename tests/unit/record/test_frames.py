"""Which frame of a stack is the user's."""

import sys
import types
from pathlib import Path

import torch

from dtk.engines import LIBRARIES
from dtk.record import frames
from dtk.record.frames import Frames, place
from dtk.sharding.registry import CONFIG_TYPES

TORCH, DTK = Path(torch.__file__).parent, Path(frames.__file__).parents[1]


def stack(*files, module="own"):
    """The frame of the first file, called from the second, and so on."""
    space = {"__name__": module, "sys": sys, "inner": lambda: sys._getframe(1)}
    for file in files:
        exec(compile("def call(then=inner):\n    return then()\n", str(file), "exec"), space)
        space["inner"] = space["call"]
    return space["inner"]()


def users(*files, **more):
    chosen = Frames().users(stack(*files, **more))
    return chosen and chosen.f_code.co_filename


def test_the_innermost_frame_outside_torch_the_interpreter_and_dtks_plumbing():
    own = "/home/me/train.py"
    assert users(own, "/home/me/main.py") == own
    assert users(TORCH / "nn" / "x.py", DTK / "record" / "x.py", "<string>", types.__file__, own) == own
    assert users("/venv/lib/python3.11/site-packages/lib/x.py", own).endswith("site-packages/lib/x.py")


def test_code_that_the_compiler_generated_is_torchs():
    assert users("/tmp/torchinductor_me/ab/cab.py", module="torch._inductor.x") == __file__


def test_a_collective_of_an_engine_is_at_the_users_line_if_there_is_one():
    package = "/venv/lib/python3.11/site-packages"
    lines, own = Frames(), stack("/home/me/train.py")
    assert {kind.traits.library for kind in CONFIG_TYPES.values()} <= {"", *LIBRARIES}
    for file, module in ((f"{library}/comm/torch.py", f"{library}.comm.torch") for library in LIBRARIES):
        inner = stack(f"{package}/{file}", module=module)
        assert lines.users(inner).f_code.co_filename == __file__
        lines._plumbing.update(dict.fromkeys(_files(inner.f_back), True))
        assert lines.users(inner).f_code.co_filename.endswith(file), "nobody's stack"
        lines._plumbing.clear()
    assert lines.users(own).f_code.co_filename == "/home/me/train.py"


def test_equal_functions_of_two_files_are_told_apart():
    lines = Frames()
    assert lines.users(stack(TORCH / "copy.py", "/home/me/copy.py")).f_code.co_filename == "/home/me/copy.py"
    assert lines.users(stack("/home/me/copy.py")).f_code.co_filename == "/home/me/copy.py"


def test_nobodys_stack_has_the_innermost_frame_outside_torch():
    assert Frames().users(None) is None
    lines = Frames()
    frame = stack(TORCH / "x.py", DTK / "parallel" / "x.py")
    lines._plumbing.update(dict.fromkeys(_files(frame), True))
    assert lines.users(frame).f_code.co_filename.endswith("dtk/parallel/x.py")


def _files(frame):
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def test_whose_code_it_is_is_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(frames, "_CACHE", 3)
    lines = Frames()
    for number in range(20):
        lines.users(stack(TORCH / f"{number}.py", "/home/me/train.py"))
    assert len(lines._plumbing) <= 5


def test_a_place_as_the_ring_keeps_it():
    assert place(stack("/home/me/train.py")) == "/home/me/train.py:2\tcall"
