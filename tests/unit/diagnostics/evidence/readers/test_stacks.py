"""Stack dumps: faulthandler and py-spy as they are printed, the main thread, what it does."""
# texts as they are printed, one case a line

import faulthandler
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Frame, Stacks
from diagnostics.evidence.readers import stacks as stack_file
from diagnostics.evidence.stacks import activity, dumps as stacks
from tests.patience import stretched

TORCH = "/usr/lib/python3.11/site-packages/torch"
HEAD = "# stacks at 1795259551.250 s since 1970\n"
OTHER = """Thread 0x00007f0001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

"""


def fault(*frames: str) -> str:
    """A dump by faulthandler with these frames in the main thread, innermost first: `file:line function`."""
    lines = []
    for frame in frames:
        place, _, function = frame.partition(" ")
        file, _, line = place.rpartition(":")
        lines.append(f'  File "{file}", line {line} in {function}')
    return HEAD + OTHER + "Thread 0x00007f0002 (most recent call first):\n" + "\n".join(lines) + "\n"


def dump(path: Path, text: str) -> Stacks:
    path.write_text(text, encoding="utf-8")
    return stack_file.read(path, path.name, 3, Limits())[0]


def test_faulthandler_itself_is_read_back(tmp_path: Path) -> None:
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait, name="waits")
    waiting.start()
    path = tmp_path / "rank_00003.txt"
    try:
        with path.open("w", encoding="utf-8") as file:
            print("# stacks at 1795259551.250 s since 1970", file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
    finally:
        stop.set()
        waiting.join()
    assert stack_file.recognise(path.read_bytes()[:8192])
    (stack,) = stack_file.read(path, "x", 3, Limits())
    assert stack.time_s == 1795259551.25
    assert stack.rank == 3
    main = stacks.main_thread(stack)
    assert main is not None
    assert main.frames[0].function == "test_faulthandler_itself_is_read_back"
    assert main.frames[0].file == __file__
    assert len(stack.threads) >= 2


PY_SPY = """Process 4711: /usr/bin/python3 train.py --local_rank=2
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    epoll_wait (libc.so.6)
    select (selectors.py:468)
    _try_get_data (torch/utils/data/dataloader.py:1251)
    _next_data (torch/utils/data/dataloader.py:1416)
    train (train.py:77)
        Locals:
            batch: None
    <module> (train.py:102)
Thread 4720 (active+gil): "Thread-1 (pin)"
    run (threading.py:982)
"""


def test_py_spy_dump(tmp_path: Path) -> None:
    assert stack_file.recognise(PY_SPY.encode())
    path = tmp_path / "pyspy_4711.txt"
    path.write_text(PY_SPY, encoding="utf-8")
    (stack,) = stack_file.read(path, path.name, None, Limits())
    assert stack.rank == 2
    main = stacks.main_thread(stack)
    assert main is not None
    assert main.name == "MainThread"
    assert [frame.line for frame in main.frames] == [0, 468, 1251, 1416, 77, 102]
    assert stacks.where(stack) == Frame("train.py", 77, "train")
    assert len(stack.threads) == 2


def test_a_dump_without_frames_says_unknown(tmp_path: Path) -> None:
    result = dump(tmp_path / "s.txt", "Current thread 0x01 (most recent call first):\n  <no Python frame>\n")
    assert activity.doing(result).doing == "unknown"
    assert stacks.where(result) is None


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "\x00\xff" * 100])
def test_no_stacks_is_a_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.txt"
    path.write_text(text, encoding="utf-8")
    assert not stack_file.recognise(text.encode())
    with pytest.raises(ValueError, match="no stack"):
        stack_file.read(path, "s.txt", None, Limits())


SERVER = "PARTIAL DATA: 2/3 workers responded\n  Rank 1: timed out\n\n=== Rank 0: http://gpu1:41001 ===\n{}\n"
SERVER += "=== Rank 1: http://gpu1:41002 ===\nError: 500\n=== Rank 2: http://gpu2:41001 ===\n{}"
"""What torch's debug server writes (torch/distributed/debug/_debug_handlers.py, StacksHandler.dump)."""


def test_the_debug_server_puts_all_ranks_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "stacks_20261123.txt"
    texts = (fault("/job/train.py:7 step").removeprefix(HEAD), fault("/job/data.py:9 read").removeprefix(HEAD))
    path.write_text(SERVER.format(*texts))
    assert stack_file.recognise(path.read_bytes())
    stacks = stack_file.read(path, path.name, None, Limits())
    assert [(dump.rank, activity.doing(dump).frame) for dump in stacks] == [
        (0, Frame("/job/train.py", 7, "step")),
        (2, Frame("/job/data.py", 9, "read")),
    ]
    assert not stack_file.recognise(b"=== Rank 0: http://gpu1:1 ===\n{'counters': 3}\n")


def test_py_spy_in_json_is_read_back(tmp_path: Path) -> None:
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.is_file():
        pytest.skip("py-spy is not installed")
    script = tmp_path / "waits.py"
    script.write_text(
        "import time\n\ndef read_batch():\n    print(1, flush=True)\n    time.sleep(60)\n\nread_batch()\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        done = subprocess.run(
            [spy, "dump", "--json", "--pid", str(process.pid)], capture_output=True, timeout=stretched(60)
        )
    finally:
        process.kill()
        process.communicate()
    if done.returncode:
        pytest.skip(f"py-spy may not look here: {done.stderr.decode()[:200]}")
    path = tmp_path / "rank_3.json"
    path.write_bytes(done.stdout)
    assert stack_file.recognise(done.stdout[:8192])
    (stack,) = stack_file.read(path, path.name, 3, Limits())
    assert stacks.where(stack) == Frame(str(script), 5, "read_batch")


@pytest.mark.parametrize(
    "text", ['[{"owns_gil": 1, "frames": 3}]', '[{"owns_gil": 1, "frames": [{"name": "f"}]}]', "[]", "[3]"]
)
def test_damaged_json_of_py_spy_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"stack|Object|Expected|missing"):
        stack_file.read(tmp_path / "a.json", "a.json", 0, Limits())


HONEST = (HEAD + OTHER).encode()
DAMAGED = HEAD.encode()
