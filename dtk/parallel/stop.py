"""Stopping at the next step: a signal sets a flag, the ranks agree on it, the loop ends with a checkpoint."""

import os
import signal
from types import FrameType

LOCAL_STOP = signal.SIGUSR1
"""What dtk's own launcher sends. SIGTERM is left to the elastic agent there, which uses it to end the
peers of a failed rank at once."""


class StopRequest:
    """Whether this rank was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.requested = False
        self.signal_number = int(signal.SIGTERM)

    def install(self, own_launcher: bool) -> None:
        """Listen for the signals of our launcher, or for those of torchrun and Slurm.

        Args:
            own_launcher: whether dtk started this rank. If so SIGINT is ignored: the parent gets
                the same Ctrl-C and decides.
        """
        signal.signal(LOCAL_STOP, self._ask)
        if own_launcher:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number != LOCAL_STOP:
            os._exit(128 + number)
        self.requested = True
        if number != LOCAL_STOP:
            self.signal_number = number
