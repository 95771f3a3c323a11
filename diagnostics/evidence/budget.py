"""Limits of time and memory for one reader or cause: the result of reading a file may be far larger than the file."""

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import shortened

SECONDS_PER_MIB = 4
"""Reading takes 1.5 s per MiB for a gzip trace compressed 60:1, 0.07 s per MiB for a flight dump (benchmarks.md)."""
MEMORY_PER_BYTE = 64
_INLINE_BYTES = 64 << 10  # File systems may store smaller files inline, without blocks.
CHECK_S = 0.2  # Interval of the checks, in processor time.


class OverBudgetError(DiagnosticsError, ValueError):
    """A reader or a cause exceeded its budget."""

    def __init__(self, *_: object) -> None:  # OmegaConf catches what is raised inside it and raises its class anew.
        super().__init__("it takes more time or memory than evidence of this size may", "raise it with --limit-scale")


_open: list[tuple[float, int]] = []
"""Processor time of this process (s) and resident bytes at which each active budget ends; the innermost last."""


@contextmanager
def budget(limits: Limits, size_bytes: int) -> Iterator[None]:
    """Limit time and memory of the block. Only in the main thread, and if the system has timers of processor time.

    `size_bytes` is the size of the evidence on disk, by which `limits` grow; what was created in memory (0) is trusted.
    OverBudgetError in the block, from any line of Python.
    """
    if not (size_bytes and hasattr(signal, "setitimer")) or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGPROF) is not _look:  # Stays installed for signals that arrive late.
        signal.signal(signal.SIGPROF, _look)
    end_s = time.process_time() + limits.seconds + SECONDS_PER_MIB * size_bytes / 2**20
    _open.append((end_s, resident_bytes() + limits.memory_bytes + MEMORY_PER_BYTE * size_bytes))
    signal.setitimer(signal.ITIMER_PROF, CHECK_S, CHECK_S)
    try:
        yield
    finally:
        _open.pop()
        if not _open:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _look(number: int, frame: object) -> None:
    if _open and (time.process_time() > _open[-1][0] or resident_bytes() > _open[-1][1]):
        raise OverBudgetError


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if /proc does not provide it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - read for every cause and reader
            return int(file.read(200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        return 0


def disk_bytes(path: Path) -> int:
    """Return the allocated bytes of a file, which exclude the holes of a sparse file; 0 if unreadable."""
    try:
        about = path.stat()
    except OSError:
        return 0
    blocks_bytes = getattr(about, "st_blocks", about.st_size) * 512
    return min(about.st_size, max(blocks_bytes, _INLINE_BYTES))


def failure(error: Exception) -> str:
    """Return a one-line description of an error; for unexpected ones with the line of code, for a bug report."""
    text = shortened(" ".join(str(error).split()))
    if isinstance(error, OverBudgetError) or error.__traceback__ is None:
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{'/'.join(Path(place.filename).parts[-3:])}:{place.lineno}"
    return f"{type(error).__name__}: {text} at {at}; please report this line"
