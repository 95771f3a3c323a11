"""Asking a rank to stop: which signals count under which launcher, and that the first one is remembered."""

import os
import signal
from collections.abc import Iterator

import pytest

from dtk.parallel.stop import LOCAL_STOP, STOPPING, StopRequest, is_ignored_hangup


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (LOCAL_STOP, *STOPPING)}  # Also under nohup.
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_under_torchrun_every_stopping_signal_asks_and_the_first_is_kept() -> None:
    stop = StopRequest()
    stop.install(own_launcher=False)
    assert not stop.requested and stop.signal_number == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGHUP)
    assert stop.requested and stop.signal_number == signal.SIGHUP
    os.kill(os.getpid(), signal.SIGHUP)  # Hangups may repeat.
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal_number == signal.SIGHUP


def test_dtks_own_launcher_decides_about_ctrl_c_and_hangup() -> None:
    stop = StopRequest()
    stop.install(own_launcher=True)
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert not stop.requested
    os.kill(os.getpid(), LOCAL_STOP)
    assert stop.requested and stop.signal_number == signal.SIGTERM, "what the launcher means by it"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "left to the elastic agent"


def test_nohup_stays_in_force() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert is_ignored_hangup(signal.SIGHUP) and not is_ignored_hangup(signal.SIGINT)
    stop = StopRequest()
    stop.install(own_launcher=False)
    os.kill(os.getpid(), signal.SIGHUP)
    assert not stop.requested


def test_a_second_signal_ends_the_rank() -> None:
    child = os.fork()
    if child == 0:
        StopRequest().install(own_launcher=False)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
