"""Signals that ask for a stop, in processes of their own: a second one ends them, but a hangup never does."""

import subprocess
import sys

import pytest

PARENT = """
from dtk.launch.stopping import StopSignals
with StopSignals() as stop:
    for number in numbers:
        os.kill(os.getpid(), number)
        print(stop.signal_number and int(stop.signal_number), stop.twice)
"""
RANK = """
from dtk.parallel.stop import StopRequest
stop = StopRequest()
stop.install(own_launcher=False)
for number in numbers:
    os.kill(os.getpid(), number)
    print(stop.requested, stop.signal_number, flush=True)
"""
HUP, INT, TERM = 1, 2, 15


def signalled(code: str, *numbers: int, hangup: str = "SIG_DFL") -> "subprocess.CompletedProcess[str]":
    before = f"import os, signal\nsignal.signal(signal.SIGHUP, signal.{hangup})\nnumbers = {numbers}\n"
    return subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("numbers", "lines"),
    [
        ((TERM, TERM), ["15 False", "15 True"]),
        ((INT, HUP, TERM), ["2 False", "2 False", "2 True"]),
        ((HUP, HUP, HUP), ["1 False"] * 3),
        ((HUP, TERM, INT), ["1 False", "1 False", "1 True"]),
    ],
)
def test_the_parent_asks_once_and_ends_at_the_second(numbers: tuple[int, ...], lines: list[str]) -> None:
    done = signalled(PARENT, *numbers)
    assert done.stdout.splitlines() == lines
    assert done.stderr.count("stopping after this step") == 1


def test_a_rank_of_torchrun_does_the_same() -> None:
    done = signalled(RANK, HUP, HUP, TERM, TERM)
    assert done.stdout.splitlines() == ["True 1"] * 3
    assert done.returncode == 128 + TERM


@pytest.mark.parametrize(("code", "line"), [(PARENT, "None False"), (RANK, "False 15")])
def test_under_nohup_a_hangup_is_nothing(code: str, line: str) -> None:
    done = signalled(code, HUP, hangup="SIG_IGN")
    assert (done.returncode, done.stdout.splitlines()) == (0, [line])
