"""Ctrl-C, SIGTERM and hangup in the parent: the first signal requests a checkpoint, the second kills the ranks."""

import contextlib
import os
import signal
import sys
from types import FrameType

import psutil

from dtk.parallel.stop import LOCAL_STOP, STOPPING, is_ignored_hangup

STOPPED = tuple(128 + number for number in STOPPING)  # Exit codes of a stopped run.


class StopSignals:
    """While active, converts the first signal to a stop request and the second to immediate termination.

    A hangup is only a request, however often it comes: kernel and shell both send one when a terminal is closed.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # The first signal received.
        self.twice = False
        self._insisted = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        # Ranks inherit this and so survive a request that arrives before they install handlers; it is repeated.
        self._previous[LOCAL_STOP] = signal.signal(LOCAL_STOP, signal.SIG_IGN)
        for number in STOPPING:
            if not is_ignored_hangup(number):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            if self._insisted:
                self.twice = True
                for child in psutil.Process().children(recursive=True):
                    _send(child, signal.SIGKILL)
                return
            self._insisted = True
        if self.signal_number is not None:
            return
        self.signal_number = number
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        with contextlib.suppress(OSError):  # The terminal may be closed.
            text = f"\nstopping after this step, with a checkpoint ({again} to stop now)\n"
            os.write(sys.stderr.fileno(), text.encode())
        self.repeat()

    def repeat(self) -> None:
        """Repeat a stop request to the ranks, as some may not have installed handlers before."""
        if self.signal_number is not None and not self.twice:
            ask_ranks()


def ask_ranks() -> None:
    """Request a graceful stop of the ranks that this process started; may be repeated."""
    for child in psutil.Process().children():
        _send(child, LOCAL_STOP)


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
