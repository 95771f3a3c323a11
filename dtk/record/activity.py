"""Detection of progress on this rank outside collectives, which distinguishes a slow rank from a stuck one, and of a
process that was suspended (SIGSTOP, a debugger, a frozen container).
"""

import os
import resource
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import CodeType

from diagnostics.contract.files import kernel_text, stat_fields

COMPILING = ("/torch/_dynamo/convert_frame.py", "/torch/_inductor/async_compile.py", "/triton/compiler/compiler.py")
"""Frames that are on the stack only during compilation, which may run in another process."""
SAMPLES = 8  # Chosen: only the newest samples count, so that a rank that stops working is detected.
MOVING = 3  # Chosen: stack changes in the last samples that count as work; a loop around `sleep` shows one at times.
BUSY = 0.5  # Chosen: a thread that computes gets most of a core or waits for one; one that polls needs a few percent.
TRANSFER_BYTES = 1 << 20  # Chosen: bytes read or written between two samples; polling a queue moves less.
_DEPTH = 200  # Chosen: deeper stacks are recursion, whose end is enough.
PAUSED_S = 5.0  # Chosen: a polling thread is never late by seconds, except for the reasons that `Pause` excludes.
SWITCHES_PER_S = 5
"""A thread that waits for the GIL wakes up every 5 ms, 200 times a second; a suspended one not at all."""


class Activity:
    """Samples the main thread."""

    def __init__(self, device_type: str) -> None:
        # A thread that waits for a CUDA device may busy-wait on a core.
        self._cpu_counts = device_type == "cpu"
        self._changes: deque[bool] = deque(maxlen=SAMPLES)
        self._stack: list[tuple[CodeType, int]] = []
        self._task = Path(f"/proc/self/task/{os.getpid()}")
        self._run_s = 0.0
        self._bytes = 0

    def works(self, elapsed_s: float) -> bool:
        """Whether the main thread worked since the last call, `elapsed_s` seconds ago."""
        before, self._stack = self._stack, _stack()
        self._changes.append(self._stack != before)
        compiling = any(code.co_filename.endswith(COMPILING) for code, _ in self._stack)
        run_s, self._run_s = self._run_s, self._read_run_s()
        moved_bytes, self._bytes = self._bytes, self._read_bytes()
        busy = self._cpu_counts and self._run_s - run_s > BUSY * elapsed_s
        return compiling or busy or self._bytes - moved_bytes > TRANSFER_BYTES or sum(self._changes) >= MOVING

    def _read_run_s(self) -> float:
        """Return the seconds in which the main thread ran or waited for a core; 0 if unknown."""
        if (scheduled := scheduled_s(os.getpid())) is not None:
            return sum(scheduled)
        with suppress(ValueError, IndexError):
            fields = stat_fields(self._task)
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _read_bytes(self) -> int:
        """Return the bytes that the main thread has read and written so far; 0 if the system does not report them."""
        with suppress(ValueError, IndexError):
            return sum(int(line.split()[1]) for line in kernel_text(self._task / "io").splitlines()[:2])
        return 0


def scheduled_s(pid: int) -> tuple[float, float] | None:
    """Return (seconds that a thread ran, seconds that it waited for a core); None if unknown.

    The id of a process is that of its main thread.

    Source: Documentation/scheduler/sched-stats.rst of Linux (/proc/<pid>/schedstat).
    """
    with suppress(ValueError):
        on_core_ns, waiting_ns = kernel_text(Path(f"/proc/{pid}/schedstat")).split()[:2]
        return int(on_core_ns) / 1e9, int(waiting_ns) / 1e9
    return None


def _stack() -> list[tuple[CodeType, int]]:
    """Return the code objects of the main thread and the current instruction in each, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack: list[tuple[CodeType, int]] = []
    while frame is not None and len(stack) < _DEPTH:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return stack


def where_main_thread_is(plumbing: tuple[str, ...]) -> str:
    """Format the innermost frame outside torch and the interpreter's own files: `faulty.py:33 in fail (sleep)`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = frame
    while frame is not None and frame.f_code.co_filename.startswith(plumbing):
        frame = frame.f_back
    chosen = frame or innermost
    if chosen is None:
        return "an unknown place"
    text = f"{Path(chosen.f_code.co_filename).name}:{chosen.f_lineno} in {chosen.f_code.co_qualname}"
    inner = innermost.f_code.co_qualname if innermost is not None and innermost is not chosen else ""
    return f"{text} (inside {inner})" if inner else text


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
