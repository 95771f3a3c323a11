"""A process that was suspended, against one whose thread was kept from running by something else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.patience import stretched

_ROUND = """
import ctypes, sys, threading, time
from dtk.record import activity
activity.PAUSED_S = 0.8

def rounds():
    for _ in range(4):
        one = activity.Pause()
        for _ in range(5):
            time.sleep(0.1)
        if (lasted_s := one.lasted_s()) is not None:
            print(f"{lasted_s:.2f}", flush=True)

thread = threading.Thread(target=rounds)
print("ready", flush=True)
thread.start()
if sys.argv[1] == "GIL":
    time.sleep(0.3)
    ctypes.PyDLL(None).usleep(1_500_000)
thread.join()
"""


@pytest.mark.parametrize(("what", "paused"), [("SIGSTOP", True), ("GIL", False), ("nothing", False)])
def test_only_a_suspended_process_has_paused(what: str, paused: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", _ROUND, what], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if what == "SIGSTOP":
        time.sleep(0.7)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.6)
        os.kill(process.pid, signal.SIGCONT)
    lasted_s = [float(line) for line in process.communicate(timeout=stretched(60))[0].split()]
    assert bool(lasted_s) is paused and all(one_s > 1.0 for one_s in lasted_s)
