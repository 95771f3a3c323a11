"""What functions in C block in, by their names in Python, in native stacks and in the kernel."""

import builtins
import importlib

import pytest

from diagnostics.evidence.stacks.activity import (
    CALLS,
    LOCK,
    MAKERS,
    METHODS,
    QUICK,
    QUICK_METHODS,
    blocked_in_kernel,
    blocking_call,
)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("__GI___libc_read", "reading a file or a pipe"),
        ("__libc_open64", "opening a file"),
        ("flock", "waiting for a lock"),
        ("__pthread_cond_wait", None),
        ("recv_nocancel", "waiting for a socket"),
        ("clock_nanosleep", "sleeping"),
        ("cudaStreamSynchronize", "waiting for the device"),
        ("cudaLaunchKernel", None),
        ("os_waitpid_impl", "waiting for a process to end"),
        ("reader_loop", None),
        ("", None),
    ],
)
def test_functions_of_native_stacks(function, words):
    blocks = blocking_call(function)
    assert (blocks and str(blocks[1])) == words


@pytest.mark.parametrize(
    ("wchan", "kind"),
    [("flock_lock_inode_wait", "lock"), ("pipe_read", "file I/O"), ("rpc_wait_bit_killable", "file I/O"),
     ("hrtimer_nanosleep", "sleep"), ("do_wait", "process"), ("futex_wait_queue", None), ("ep_poll", None), ("", None)],
)  # fmt: skip
def test_functions_of_the_kernel(wchan, kind):
    blocks = blocked_in_kernel(wchan)
    assert (blocks and blocks[0]) == kind


def exists(name):
    module, _, function = name.rpartition(".")
    return hasattr(importlib.import_module(module) if module else builtins, function)


@pytest.mark.parametrize("name", sorted({*CALLS, *MAKERS, *QUICK}))
def test_every_name_of_the_tables_is_one_of_python(name):
    assert exists(name)


def test_what_is_made_has_methods_and_what_blocks_is_not_quick():
    assert set(MAKERS.values()) == set(METHODS)
    assert not set(CALLS) & QUICK
    assert METHODS["lock"]["acquire"] == CALLS["fcntl.flock"] == LOCK


def test_words_name_no_call():
    blocks = {*CALLS.values(), *(each for methods in METHODS.values() for each in methods.values())}
    assert all(str(words)[0].islower() and "(" not in str(words) for _, words in blocks)
    assert {kind for kind, _ in blocks} <= {
        "lock",
        "file I/O",
        "process",
        "network",
        "sleep",
        "device",
        "input",
        "store",
    }
    assert QUICK_METHODS
