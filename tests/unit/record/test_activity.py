"""A rank that computes is working also where it gets a fifth of a core; one that waits is not."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, threading, time
from dtk.record.activity import Activity, scheduled_s
os.sched_setaffinity(0, {core})
hogs = [os.fork() for _ in range(4)]
if 0 in hogs:
    ends_s = time.monotonic() + 3
    while time.monotonic() < ends_s:
        pass
    os._exit(0)
said = []
def watch():
    for _ in range(10):  # The main thread may still wait for the core in which it started this one.
        before = scheduled_s(os.getpid())
        time.sleep(0.1)
        if scheduled_s(os.getpid()) == before:
            break
    activity = Activity("cpu")
    activity.works(0.0)
    for _ in range(3):
        began_s = time.monotonic()
        time.sleep(0.5)
        said.append(activity.works(time.monotonic() - began_s))
    print(said)
    os._exit(0)
threading.Thread(target=watch).start()
{main}
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="one core cannot be chosen on this system")
@pytest.mark.parametrize(
    ("main", "works"),
    [
        ("import hashlib; data = bytes(1 << 30); hashlib.sha512(data); hashlib.sha512(data)", True),
        ("time.sleep(30)", False),
    ],
    ids=["computes", "sleeps"],
)
def test_among_others_on_one_core(main: str, works: bool) -> None:
    core = {min(os.sched_getaffinity(0))}
    code = CODE.format(core=core, main=main)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == f"{[works] * 3}\n"
