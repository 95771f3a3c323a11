"""What a stack's main thread waits for: library frames, C's frames of py-spy, and the source line of a call into C."""
# ruff: noqa: E501  # stacks as they are printed

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Frame, Stacks
from diagnostics.evidence.readers.stacks import read
from diagnostics.evidence.stacks import activity, source_file
from diagnostics.evidence.stacks.dumps import where
from tests.patience import stretched
from tests.unit.diagnostics.evidence.readers.test_stacks import TORCH, dump, fault

LIB = "/usr/lib/python3.11"


@pytest.mark.parametrize(
    ("doing", "words", "frames"),
    [
        ("collective", "torch.distributed", (f"{TORCH}/distributed/distributed_c10d.py:3252 all_reduce",)),
        ("collective", "torch.distributed", (f"{TORCH}/distributed/pipelining/schedules.py:683 _wait_batch_p2p",)),
        ("collective", "a process group is created", (f"{TORCH}/distributed/rendezvous.py:198 _create_c10d_store",)),
        ("collective", "a process group is created", (f"{TORCH}/distributed/distributed_c10d.py:870 _store_based_barrier",)),
        ("data loader", "data loader", (f"{LIB}/queue.py:171 get", f"{TORCH}/utils/data/dataloader.py:1251 _try_get_data")),
        ("data loader", "data loader", (f"{LIB}/multiprocessing/connection.py:930 wait", f"{TORCH}/utils/data/dataloader.py:1251 _try_get_data")),
        ("process", "data from another process", (f"{LIB}/multiprocessing/connection.py:930 wait",)),
        ("process", "a process to end", (f"{LIB}/subprocess.py:2046 _try_wait", f"{LIB}/subprocess.py:550 run")),
        ("compile", "compiling", (f"{LIB}/subprocess.py:10 wait", f"{TORCH}/_inductor/codecache.py:10 load")),
        ("lock", "a lock or a queue", (f"{LIB}/threading.py:331 wait",)),
        ("lock", "a queue", (f"{LIB}/threading.py:331 wait", f"{LIB}/queue.py:171 get")),
        ("lock", "a thread to end", (f"{LIB}/threading.py:1119 join",)),
        ("lock", "a lock file", ("/venv/lib/python3.11/site-packages/filelock/_api.py:344 acquire",)),
        ("network", "network", (f"{LIB}/ssl.py:1166 read", f"{LIB}/socket.py:706 readinto")),
        ("file I/O", "file I/O", (f"{TORCH}/serialization.py:800 save",)),
        ("debugger", "input", (f"{LIB}/cmd.py:126 cmdloop", f"{LIB}/pdb.py:350 interaction")),
    ],
)  # fmt: skip
def test_library_frames_tell(tmp_path: Path, doing: str, words: str, frames: tuple[str, ...]) -> None:
    stacks = dump(tmp_path / "s.txt", fault(*frames, "/home/u/train.py:17 main", f"{TORCH}/distributed/run.py:9 run"))
    at = activity.doing(stacks)
    assert (at.doing, at.frame) == (doing, Frame("/home/u/train.py", 17, "main"))
    assert words in f"{at.words}, {at.aside}"


@pytest.mark.parametrize("function", ["main", "read", "wait", "open", "sleep"])
def test_the_name_of_a_users_function_tells_nothing(tmp_path: Path, function: str) -> None:
    stacks = dump(tmp_path / "s.txt", fault(f"/home/u/train.py:17 {function}"))
    assert activity.doing(stacks).doing == "user code"


NATIVE = {
    "lock": "0x7f1ff5aa3e96 (libc.so.6)|PyThread_acquire_lock_timed (libpython3.11.so.1.0)|lock_PyThread_acquire_lock (libpython3.11.so.1.0)",
    "lock: flock": "flock (libc.so.6)|fcntl_flock_impl (fcntlmodule.c:297)|fcntl_flock (fcntlmodule.c.h:165)",
    "queue": "PyThread_acquire_lock_timed (libpython3.11.so.1.0)|_queue_SimpleQueue_get_impl (_queuemodule.c:253)|_queue_SimpleQueue_get (_queuemodule.c.h:177)",
    "opening": "open64 (libc.so.6)",
    "reading": "read (libc.so.6)|os_read (libpython3.11.so.1.0)",
    "socket": "recv (libc.so.6)|sock_call_ex (socketmodule.c:921)|sock_recv (socketmodule.c:3567)",
    "sleeping": "clock_nanosleep (libc.so.6)|time_sleep (libpython3.11.so.1.0)",
    "leaves no frame": "gemm_kernel (libtorch_cpu.so)|0x7fa4b2c4524a (libc.so.6)",
    "waiting for a queue": "lock_PyThread_acquire_lock (libpython3.11.so.1.0)|Condition.wait (threading.py:327)|Queue.get (queue.py:171)",
    "data from another process": "read (libc.so.6)|os_read (libpython3.11.so.1.0)|Connection._recv (multiprocessing/connection.py:395)|Queue.get (multiprocessing/queues.py:103)",
    "lock file": "clock_nanosleep (libc.so.6)|time_sleep (libpython3.11.so.1.0)|BaseFileLock.acquire (filelock/_api.py:344)",
}


@pytest.mark.parametrize("words", NATIVE)
def test_native_frames_of_py_spy(tmp_path: Path, words: str) -> None:
    frames = [*NATIVE[words].split("|"), "waits (stall.py:10)", "<module> (nat.py:8)", "0x7f1ff5a4524a (libc.so.6)"]
    text = "Process 7: python nat.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle)\n"
    text += "".join(f"    {frame}\n" for frame in frames)
    text += 'Thread 8 (idle): "Thread-1"\n    poll (libc.so.6)\n    run (threading.py:982)\n    clone3 (libc.so.6)\n'
    (tmp_path / "s.txt").write_text(text)
    (stack,) = read(tmp_path / "s.txt", "s.txt", 0, Limits())
    assert where(stack) == Frame("stall.py", 10, "waits")
    at = activity.doing(stack)
    assert words.partition(": ")[0] in f"{at.words}, {at.aside}"


@pytest.mark.parametrize(("call", "doing"), [("input('Overwrite? ')", "input"), ("os.read(0, 1)", "file I/O")])
def test_the_line_tells_input_from_other_reads(tmp_path: Path, call: str, doing: str) -> None:
    script = tmp_path / "ask.py"
    script.write_text(f"import os\ndef ask():\n    answer = {call}\n")
    frames = f'Thread 7 (idle): "MainThread"\n    read (libc.so.6)\n    ask ({script}:3)\n    <module> ({script}:4)\n'
    (tmp_path / "s.txt").write_text(f"Process 7: python ask.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n{frames}")
    (stack,) = read(tmp_path / "s.txt", "s.txt", 0, Limits())
    assert activity.doing(stack).doing == doing


WAITS = {
    "lock": ("lock.acquire()", "lock = threading.Lock(); lock.acquire()", "lock.acquire()"),
    "with": ("with self.guard_lock", "self = types.SimpleNamespace(guard_lock=threading.Lock()); self.guard_lock.acquire()",
             "with self.guard_lock:\n        pass"),
    "flock": ("fcntl.flock()", "path = __file__ + '.lock'; a = open(path, 'w'); flock(a, fcntl.LOCK_EX)",
              "flock(\n        open(path, 'w'),\n        fcntl.LOCK_EX,\n    )"),
    "simple queue": ("waiting for a queue: inbox.get()", "inbox = queue.SimpleQueue()", "item = str(inbox.get())"),
    "queue": ("waiting for a queue", "", "queue.Queue().get()"),
    "fifo": ("opening a file: open()", "os.mkfifo(__file__ + '.fifo')", "with open(__file__ + '.fifo') as file:\n        file.read()"),
    "pipe": ("reading a file or a pipe: os.read()", "pipe, _ = os.pipe()", "data = os.read(pipe, 1).decode()"),
    "lines": ("reading a file or a pipe: for ... in file", "r, _ = os.pipe(); file = os.fdopen(r)", "for line in file:\n        pass"),
    "socket": ("waiting for a network connection", "import socket; one = socket.socket(); one.bind(('localhost', 0)); one.listen()", "one.accept()"),
    "sleep": ("sleeping: time.sleep()", "", "time.sleep(60)"),
    "unknown C call": ("leaves no frame", "lib = ctypes.CDLL(None)", "lib.pause()"),
    "one of two": ("leaves no frame", "lib = ctypes.CDLL(None); lock = threading.Lock()", "lib.pause(), lock.acquire()"),
    "method of something": ("leaves no frame", "stuck = Stuck()", "stuck.read()"),
}  # fmt: skip
SCRIPT = """\
import ctypes, faulthandler, fcntl, os, queue, sys, threading, time, types
from fcntl import flock


class Stuck:
    read = ctypes.CDLL(None).pause


def stand():
    {setup}
    faulthandler.dump_traceback_later(0.5, exit=True, file=open(sys.argv[1], "w"))
    {line}


stand()
"""


def stand(folder: Path, kind: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that blocks and writes its stack."""
    _, setup, line = WAITS[kind]
    script = folder / f"stand_{kind.replace(' ', '_')}.py"
    script.write_text(SCRIPT.format(setup=setup or "pass", line=line))
    out = script.with_suffix(".txt")
    return subprocess.Popen([sys.executable, str(script), str(out)]), out


def test_real_processes_that_stand_in_a_call_into_c(tmp_path: Path) -> None:
    started = {kind: stand(tmp_path, kind) for kind in WAITS}
    for kind, (process, out) in started.items():
        process.wait(stretched(30))
        text = out.read_text()
        at = activity.doing(read_text(tmp_path, text), time.time())
        assert WAITS[kind][0] in f"{at.words}, {at.aside}", (kind, at, text)
        assert at.frame is not None and at.frame.function == "stand"


def read_text(folder: Path, text: str) -> Stacks:
    (folder / "s.stack").write_text(text[text.index("Thread") :])
    return read(folder / "s.stack", "s.stack", 0, Limits())[0]


def line(folder: Path, text: str, function: str = "stand", number: int = 0, taken_s: float | None = None) -> str:
    """What the last line, or another one, is said to wait for."""
    path = folder / "a.py"
    path.write_text(text)
    source_file.source.cache_clear()
    waiting = activity.waiting(Frame(str(path), number or len(text.splitlines()), function), taken_s)
    return str(waiting.words) if waiting else ""


def test_a_line_is_believed_only_where_it_is_the_one_that_ran(tmp_path: Path) -> None:
    text = "import time\ndef stand():\n    time.sleep(9)"
    assert line(tmp_path, text) == "sleeping"
    assert line(tmp_path, text, taken_s=time.time() + 9) == "sleeping"
    assert not line(tmp_path, text, taken_s=time.time() - 9), "changed since"
    assert not line(tmp_path, text, function="other"), "the line belongs to another function by now"
    assert not line(tmp_path, text, number=99)
    assert line(tmp_path, text, function="Trainer.stand") == "sleeping"
    assert not activity.waiting(Frame("a.py", 3, "stand"), None), "a path that py-spy shortened"


@pytest.mark.parametrize(
    "text",
    [
        "def stand(time):\n    time.sleep(9)",
        "import mine as time\ndef stand():\n    time.sleep(9)",
        "from mine import *\ndef stand(q):\n    q.get()",
        "def open(path): pass\ndef stand():\n    open('x')",
        "import queue\nq = queue.SimpleQueue()\nq = 7\ndef stand():\n    q.get()",
        "import time, torch\ndef stand():\n    time.sleep(1); torch.mm(a, b)",
        "def stand():\n    with model:\n        pass",
        "def stand():\n    (lambda: open('x'))()",
        "import time\ndef stand():\n    return [time.sleep(1) for _ in x][0] @ solve()",
        "def stand(:\n    open('x')",
        "\x00",
        "(" * 5000,
    ],
)
def test_what_is_not_certain_is_not_said(tmp_path: Path, text: str) -> None:
    for number in range(1, len(text.splitlines()) + 1):
        assert not line(tmp_path, text, number=number)


def test_no_source_is_read_that_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").mkdir()
    with (tmp_path / "c.py").open("wb") as file:
        file.truncate(source_file.MAX_BYTES + 1)
    began = time.monotonic()
    for name in "abcd":
        assert activity.waiting(Frame(str(tmp_path / f"{name}.py"), 1, "<module>"), None) is None
    assert time.monotonic() - began < source_file.READ_S
