"""What a source line waits for, and the many lines of which nothing is said."""

import pytest

from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.activity import waiting
from diagnostics.evidence.stacks.source_file import MAX_BYTES, source

HEAD = """\
import fcntl, os, queue, threading, time
import multiprocessing as mp
from time import sleep as nap
guard = threading.Lock()
jobs = queue.SimpleQueue()
log = open("log")
def own(): pass
def f(self, batch, path):
"""


@pytest.fixture
def line_waits(tmp_path):
    def ask(text, function="f", taken_s=None, head=HEAD):
        file = tmp_path / f"m{len(list(tmp_path.iterdir()))}.py"
        file.write_text(f"{head}    {text}\n", encoding="utf-8")
        result = waiting(Frame(str(file), head.count("\n") + 1, function), taken_s)
        return result and (result.kind, result.call)

    return ask


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("fcntl.flock(batch, fcntl.LOCK_EX)", ("lock", "fcntl.flock()")),
        ("nap(3)", ("sleep", "time.sleep()")),
        ("guard.acquire()", ("lock", "guard.acquire()")),
        ("self.mutex.acquire()", ("lock", "self.mutex.acquire()")),
        ("with guard: pass", ("lock", "with guard")),
        ("with self.lock: pass", ("lock", "with self.lock")),
        ("x = jobs.get()", ("lock", "jobs.get()")),
        ("for row in log: pass", ("file I/O", "for ... in log")),
        ("log.write(str(len(path)))", ("file I/O", "log.write()")),
        ("with open(path) as file: pass", ("file I/O", "open()")),
        ("work.wait()", ("collective", "work.wait()")),
        ("os.waitpid(int(batch), 0)", ("process", "os.waitpid()")),
    ],
)
def test_a_line_with_one_thing_to_wait_for(line_waits, text, waits):
    assert line_waits(text) == waits


@pytest.mark.parametrize(
    "text",
    [
        "batch.step()",
        "x = 1",
        "x = own()",
        "len(path)",
        "batch.read(); nap(1)",
        "nap(1); guard.acquire()",
        "with batch: pass",
        "g = lambda: nap(1)",
        "jobs.put(1); jobs.get()",
        "import unheard_of; unheard_of.run()",
    ],
)
def test_a_line_that_leaves_a_doubt(line_waits, text):
    assert line_waits(text) is None


def test_a_name_that_is_bound_to_two_things_is_neither(line_waits):
    assert line_waits("guard.get()", head=HEAD + "    guard = jobs\n") is None
    assert line_waits("nap(1)", head=HEAD + "    nap = own\n") is None


def test_the_line_must_be_of_that_function_and_unchanged(line_waits):
    assert line_waits("nap(1)", function="g") is None
    assert line_waits("nap(1)", function="Class.f") == ("sleep", "time.sleep()")
    assert line_waits("nap(1)", taken_s=1.0) is None, "the file changed since"
    assert line_waits("nap(1)", taken_s=1e11) == ("sleep", "time.sleep()")


@pytest.mark.parametrize(
    "frame", [Frame("train.py", 3, "f"), Frame("/absent/train.py", 3, "f"), Frame("/x.py", 0, "f")]
)
def test_a_file_that_is_not_at_hand(frame):
    assert waiting(frame, None) is None


def test_only_small_python_is_read(tmp_path):
    good, text, broken, large = (tmp_path / name for name in ("a.py", "a.txt", "b.py", "c.py"))
    good.write_text("x = 1\n")
    text.write_text("x = 1\n")
    broken.write_text("def (\n")
    large.write_text("#" * (MAX_BYTES + 1))
    assert [source(str(path)) is not None for path in (good, text, broken, large, tmp_path)] == [True, *[False] * 4]
    assert source(str(good)).changed_s == pytest.approx(good.stat().st_mtime)
