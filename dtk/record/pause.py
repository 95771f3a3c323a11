"""Tells a process that was suspended (SIGSTOP, a debugger, a frozen container) from one that is busy or blocked."""

import time
from contextlib import suppress
from pathlib import Path

PAUSED_S = 5.0  # Chosen: a polling thread is never late by seconds, except for the reasons that `Pause` excludes.
SWITCHES_PER_S = 5
"""A thread that waits for the GIL wakes up every 5 ms, 200 times a second; a suspended one not at all."""
_OWN = Path("/proc/thread-self")


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
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split(":") for line in (_OWN / "status").read_text().splitlines() if "ctxt_switches" in line)
        switches = sum(int(count) for _, count in lines)
        return switches, int((_OWN / "schedstat").read_text().split()[1]) / 1e9
    return None
