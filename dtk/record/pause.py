"""Tells a process that was suspended (SIGSTOP, a debugger, a frozen container) from one that is busy or blocked."""

import resource
import threading
import time

from dtk.record.activity import scheduled_s

PAUSED_S = 5.0  # Chosen: a polling thread is never late by seconds, except for the reasons that `Pause` excludes.
SWITCHES_PER_S = 5
"""A thread that waits for the GIL wakes up every 5 ms, 200 times a second; a suspended one not at all."""


class Pause:
    """One round of a polling thread: whether the process was suspended during it."""

    def __init__(self) -> None:
        self._began_s, self._before = time.monotonic(), _switches_and_delay()

    def lasted_s(self) -> float | None:
        """Return the length of the pause; None if there was none, or if this system does not show it.

        The time in which this thread was ready and waited for a core is not part of it.
        """
        gap_s = time.monotonic() - self._began_s
        if gap_s < PAUSED_S or self._before is None or (after := _switches_and_delay()) is None:
            return None
        switches, delay_s = after[0] - self._before[0], after[1] - self._before[1]
        suspended = switches < SWITCHES_PER_S * gap_s and gap_s - delay_s >= PAUSED_S
        return gap_s - delay_s if suspended else None


def _switches_and_delay() -> tuple[int, float] | None:
    """Return this thread's context switches, and the seconds that it has waited for a core (Linux)."""
    if (scheduled := scheduled_s(threading.get_native_id())) is None:
        return None
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nvcsw + used.ru_nivcsw, scheduled[1]
