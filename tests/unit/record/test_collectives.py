"""Looks at the main thread between its collectives: what is kept, and which line stands out."""

import queue
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

from diagnostics.causes.hang.straggler import stands_out
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import SAMPLES
from dtk.engines import LIBRARIES
from dtk.record import collectives
from dtk.record.collectives import CollectiveLog, Frames, place
from dtk.record.ring import Ring
from dtk.sharding.registry import CONFIG_TYPES

TORCH, DTK = Path(torch.__file__).parent, Path(collectives.__file__).parents[1]


def here():
    return sys._getframe(1)


@pytest.fixture
def make(tmp_path):
    """Ring and log of a rank."""

    def make(rank):
        ring = Ring(tmp_path / f"rank_{rank:05d}.ring", rank, 3, 0)
        ring.start()
        return CollectiveLog(ring)

    return make


def read(log):
    return RingFile(log.ring.path, log.ring.path.name, log.ring.rank, Limits())


def test_the_users_line_is_kept_and_counted(make):
    log, began_s = make(0), time.time()
    for _ in range(3):
        log.sample(here())
    line = here().f_lineno - 1
    (sample,) = read(log).read().samples
    assert (sample.file, sample.line, sample.times) == (__file__, line, 3)
    assert sample.function == "test_the_users_line_is_kept_and_counted"
    assert began_s <= sample.last_s <= time.time()


def test_a_line_of_the_interpreter_is_the_users_who_called_it(make):
    log, waiting = make(0), queue.Queue()

    def run():
        waiting.get()  # stands here

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(100):
        frame = sys._current_frames()[thread.ident]
        if frame.f_code.co_name == "wait":
            break
        time.sleep(0.01)
    log.sample(frame)
    waiting.put(None)
    thread.join()
    (sample,) = read(log).read().samples
    assert (sample.file, sample.function.rpartition(".")[2]) == (__file__, "run")


def test_inside_a_collective_nothing_is_looked_at(make):
    log = make(0)
    log.open[threading.main_thread().ident] = (None, 1, 1)
    log.sample(here())
    log.open.clear()
    log.sample(None)
    assert read(log).read().samples == ()


def test_of_many_lines_the_frequent_stay_and_the_texts_are_bounded(make, monkeypatch):
    log = make(0)
    for _ in range(50):
        log.sample(here())
    for number in range(collectives.SAMPLED + 200):
        log.sample(eval(compile("here()", f"/job/{number}.py", "eval")))
    samples = read(log).read().samples
    assert len(samples) == SAMPLES
    assert (samples[0].file, samples[0].times) == (__file__, 50)
    assert len(log._sampled) == collectives.SAMPLED


def test_the_line_that_only_one_rank_stands_on(make):
    logs = [make(rank) for rank in range(3)]

    def everywhere(log):
        log.sample(here())

    def alone(log):
        log.sample(here())

    for _ in range(20):
        for log in logs:
            everywhere(log)
    for _ in range(8):
        alone(logs[1])
    alone(logs[0])
    rings = [read(log) for log in logs]
    frame, times, looks = stands_out(rings, 1, 0)
    assert (frame.function.rpartition(".")[2], times, looks) == ("alone", 8, 28)
    assert stands_out(rings[::-1], 1, None) == (frame, times, looks)
    assert stands_out(rings, 0, 0) is None
    assert stands_out(rings, 1, 7) is None


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
    monkeypatch.setattr(collectives, "_CACHE", 3)
    lines = Frames()
    for number in range(20):
        lines.users(stack(TORCH / f"{number}.py", "/home/me/train.py"))
    assert len(lines._plumbing) <= 5


def test_a_place_as_the_ring_keeps_it():
    assert place(stack("/home/me/train.py")) == "/home/me/train.py:2\tcall"
