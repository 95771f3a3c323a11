"""Stopping at the next step: a signal sets a flag, the ranks agree on it, and the loop exits after a checkpoint."""

import os
import signal
from types import FrameType

LOCAL_STOP = signal.SIGUSR1
"""Signal of dtk's own launcher: the elastic agent uses SIGTERM there to end the peers of a failed rank immediately."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request a graceful stop; a closed terminal sends SIGHUP."""


def is_ignored_hangup(number: int) -> bool:
    """Whether this is SIGHUP and was ignored before this process started: the user typed `nohup`."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


class StopRequest:
    """Whether a stop of this rank was requested, and by which signal."""

    def __init__(self) -> None:
        self.requested = False
        self.signal_number = int(signal.SIGTERM)
        """The first signal."""
        self._insisted = False

    def install(self, own_launcher: bool) -> None:
        """Install handlers for the signals of dtk's launcher, or for those of torchrun and Slurm.

        Under dtk's launcher SIGINT and SIGHUP are ignored: the parent receives the same Ctrl-C or hangup and decides.
        """
        signal.signal(LOCAL_STOP, self._ask)
        if own_launcher:
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            return
        for number in STOPPING:
            if not is_ignored_hangup(number):
                signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Request a stop on the first signal and kill this rank on the second; hangups may repeat."""
        if number not in (LOCAL_STOP, signal.SIGHUP):
            if self._insisted:
                os._exit(128 + number)
            self._insisted = True
        if number != LOCAL_STOP and not self.requested:
            self.signal_number = number
        self.requested = True
