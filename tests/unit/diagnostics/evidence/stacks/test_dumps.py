"""Dumps of faulthandler and py-spy, line by line: threads, frames, and which thread is the main one."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.model import Frame, Stacks
from diagnostics.evidence.stacks.dumps import MAX_FRAMES, Assembler, is_native, is_users, main_thread, where

FAULT = """\
# stacks at 1700000000.500 s since 1970
Thread 0x00007f01 [dtk-watch] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "/job/train.py", line 12 in step
  File "/job/train.py", line ??? in main
"""
SPY = """\
Process 77: python train.py --local-rank=3
Python v3.11.7 (/usr/bin/python3.11)

Thread 77 (active): "MainThread"
    read (libc.so.6)
    step (train.py:12)
        Arguments:
            batch: 3
Thread 0x7F01 (idle): "Thread-1 (run)"
    wait (threading.py:331)
"""


def fed(text, close=True):
    assembler = Assembler()
    for line in text.splitlines():
        assembler.feed(line)
    if close:
        assembler.close()
    return assembler


def test_a_dump_of_faulthandler():
    (dump,) = fed(FAULT).done
    threads, time_s, local = dump.threads, dump.time_s, dump.rank
    assert (time_s, local) == (1700000000.5, None)
    assert [(thread.name, thread.main) for thread in threads] == [("dtk-watch", False), ("current", True)]
    assert threads[1].frames == (Frame("/job/train.py", 12, "step"), Frame("/job/train.py", 0, "main"))


def test_a_dump_of_py_spy():
    (dump,) = fed(SPY).done
    threads, time_s, local = dump.threads, dump.time_s, dump.rank
    assert (time_s, local) == (None, 3)
    assert [(thread.name, thread.main) for thread in threads] == [("MainThread", True), ("Thread-1 (run)", False)]
    assert threads[0].frames == (Frame("libc.so.6", 0, "read"), Frame("train.py", 12, "step"))


def test_several_dumps_of_one_file_are_several_moments():
    assert [dump.time_s for dump in fed(FAULT + FAULT.replace("1700000000.500", "1700000009")).done] == [
        1700000000.5, 1700000009.0,
    ]  # fmt: skip


def test_a_line_that_is_no_frame_ends_the_dump():
    assembler = fed(FAULT, close=False)
    assert assembler.active
    assert assembler.feed("")
    assert not assembler.feed("step 3 loss 2.0")
    assert (assembler.active, len(assembler.done)) == (False, 1)
    assert not assembler.feed("step 4 loss 2.0")


def test_the_main_thread_is_the_one_that_threading_did_not_start():
    side = '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap'
    head = "Thread 0x0{} (most recent call first):\n"
    text = f'{head.format(1)}  File "/job/a.py", line 3 in main\n{head.format(2)}{side}\n'
    (dump,) = fed(text).done
    threads = dump.threads
    assert [thread.main for thread in threads] == [True, False]
    (dump,) = fed(f"{head.format(2)}{side}\n").done
    only = dump.threads
    assert only[0].main, "faulthandler prints the main thread last"


def test_a_thread_without_frames_and_one_with_too_many():
    text = "Thread 0x01 (most recent call first):\n  <no Python frame>\n"
    (dump,) = fed(text).done
    threads = dump.threads
    assert threads[0].frames == ()
    deep = "Thread 0x01 (most recent call first):\n" + '  File "a.py", line 1 in f\n' * (MAX_FRAMES + 9)
    assert len(fed(deep).done[0].threads[0].frames) == MAX_FRAMES


@given(st.lists(st.sampled_from([*FAULT.splitlines(), *SPY.splitlines(), "noise"]), max_size=50))
@settings(max_examples=80)
def test_of_whatever_lines_each_dump_has_one_main_thread(lines):
    for threads in (dump.threads for dump in fed("\n".join(lines)).done):
        assert sum(thread.main for thread in threads) == 1


@pytest.mark.parametrize(
    ("file", "line", "users", "native"),
    [
        ("/job/train.py", 12, True, False),
        ("train.py", 12, True, False),
        ("/usr/lib/python3.11/threading.py", 3, False, False),
        ("multiprocessing/connection.py", 3, False, False),
        ("queue.py", 3, False, False),
        ("torch/nn/modules/module.py", 3, False, False),
        ("numpy/core.py", 3, False, False),
        ("numpy.py", 3, True, False),
        ("libtorch_cpu.so", 0, False, True),
        ("libc.so.6", 0, False, True),
        ("fcntlmodule.c", 297, False, True),
        ("unknown", 0, False, True),
    ],
)
def test_whose_frame_it_is(file, line, users, native):
    frame = Frame(file, line, "f")
    assert (is_users(frame), is_native(frame)) == (users, native)


def test_the_users_line_is_the_innermost_of_the_main_thread():
    (dump,) = fed(SPY).done
    threads = dump.threads
    assert where(Stacks(0, "s", threads)) == Frame("train.py", 12, "step")
    assert where(Stacks(0, "s", ())) is None
    assert main_thread(Stacks(0, "s", ())) is None
