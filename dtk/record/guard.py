"""Keeps recording from disturbing training: failures are reported once, and slow writes run on their own thread."""

import errno
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

REPORT_WAIT_S = 0.2  # Chosen: timeout for reports at the end, as stderr may be on the very disk that stalls.
STOP_S = 1.0  # Chosen: timeout for a thread of recording to end, after which a stalled disk or driver is left alone.
_WAITING = 1024  # Chosen: operations that may wait for a slow disk; each holds a record of some hundred bytes.

_reported: set[str] = set()
_lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
_printer: threading.Thread | None = None


def report(topic: str, problem: object, then: str = "training continues") -> None:
    """Report once per topic on stderr that something could not be recorded. Never raises or blocks."""
    global _printer
    if topic in _reported:
        return
    _reported.add(topic)
    kind = f"{type(problem).__name__}: " if isinstance(problem, BaseException) else ""
    _lines.put(" ".join(f"dtk: {topic}: {kind}{problem}; {then}".split()))
    if _printer is None:
        _printer = threading.Thread(target=_print, name="dtk-report", daemon=True)
        with suppress(RuntimeError):  # The interpreter is shutting down.
            _printer.start()


def flush_reports() -> None:
    """Give pending reports at most REPORT_WAIT_S seconds; call it before the process exits."""
    if _printer is not None:
        printed = threading.Event()
        _lines.put(printed)
        printed.wait(REPORT_WAIT_S)


def _print() -> None:
    """Print all reports on one thread, so that lines do not interleave."""
    while True:
        line = _lines.get()
        if isinstance(line, threading.Event):
            line.set()
            continue
        with suppress(OSError, ValueError):  # There is nowhere left to report it.
            print(line, file=sys.stderr, flush=True)


@contextmanager
def guarded(topic: str) -> Iterator[None]:
    """Report and swallow any failure of the block."""
    try:
        yield
    except Exception as error:
        report(topic, error)


def run_all(parts: Mapping[str, Callable[[], object]]) -> None:
    """Run each part, by topic; a part that fails does not affect the others."""
    for topic, part in parts.items():
        with guarded(topic):
            part()


def bounded(topic: str, operation: Callable[[], T], timeout_s: float) -> T | None:
    """Run an operation on a thread and return its result; None if it failed, or was abandoned after `timeout_s`."""
    results: list[T] = []
    work = guarded(topic)(lambda: results.append(operation()))
    thread = threading.Thread(target=work, name=f"dtk-{topic}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        report(topic, f"no answer within {timeout_s:g} s")
    return results[0] if results else None


class Writer:
    """Runs operations in order on one background thread; drops and counts new ones when the queue is full."""

    def __init__(self, name: str, capacity: int = _WAITING) -> None:
        self.name = name
        self.capacity = capacity
        self.dropped = 0
        self._queue: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def submit(self, topic: str, operation: Callable[[], None]) -> None:
        """Queue one operation; returns immediately, whatever the disk does."""
        if self._queue.qsize() >= self.capacity:
            self.dropped += 1
            report(f"{self.name}: writing stalls", f"{self.capacity} records are waiting, new ones are dropped")
            return
        self._queue.put((topic, operation))

    def close(self, timeout_s: float) -> bool:
        """Finish the queue, for at most `timeout_s` seconds; return whether all operations were run."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout_s)
        done = not self._thread.is_alive()
        if self.dropped or not done:
            waiting = 0 if done else self._queue.qsize()
            report(f"{self.name}: records lost", f"{self.dropped} dropped, {waiting} not written at the end")
        return done

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            topic, operation = item
            with guarded(topic):
                operation()


class JsonLines:
    """Appends records to a file, one per line; after a full disk it continues on a new line."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self.path = path
        self._writer = writer
        self._file: int | None = None
        self._torn = False

    def append(self, *records: Mapping[str, Any]) -> None:
        """Queue records (JSON values; others become strings). Takes microseconds and never raises."""
        self._writer.submit(self.path.parent.name + "/" + self.path.name, lambda: self.write(records))

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write on the calling thread; OSError if the disk is full or read-only. The next record ends a cut one."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        text = "".join(json.dumps(record, default=str) + "\n" for record in records)
        data = (b"\n" if self._torn else b"") + text.encode()
        written = os.write(self._file, data)
        self._torn = written < len(data) and (written > 0 or self._torn)
        if written < len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
