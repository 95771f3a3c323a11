"""Runs a user's command transparently, and also saves its standard error to a file."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from dtk.errors import refused

LOG_BYTES = 64 << 20  # Chosen: size at which the log is rotated, with one older part: the last lines matter.
DRAIN_S = 2.0  # Chosen: error output is there at the exit, but a process left behind may keep the pipe open.
KILL_S = 5.0  # Chosen: longer than a rank's last dumps may take (3 s), before SIGKILL follows SIGTERM.
_CHUNK = 1 << 16  # Capacity of a pipe on Linux, pipe(7).


class Command:
    """One run of a command; a context manager that forwards SIGINT and SIGTERM to the command."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.argv = list(argv)
        self.environment = environment
        self.log = log
        self.stopped = False  # Whether a stop was requested.
        self.pending_signal: int | None = None
        """The first stop signal, held until `release`, so that the ranks can report before."""
        self.holds = False  # Whether that first signal is to be held.
        self.keeps_log = True  # Set to False if further output is not evidence.
        self._process: subprocess.Popen[bytes] | None = None
        self._tee: threading.Thread | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Command":
        """Start the command; DtkError if the command cannot be started, or the log cannot be written."""
        with refused(f"cannot run {self.argv[0]}"):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            log = self.log.open("ab", buffering=0)
            source, sink = _channel()
            try:
                self._process = subprocess.Popen(self.argv, env=self.environment, stderr=sink)
            except BaseException:
                log.close()
                os.close(source)
                raise
            finally:
                os.close(sink)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._forward)
        self._tee = threading.Thread(target=self._copy, args=(source, log), name="tee", daemon=True)
        self._tee.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.poll() is None:
            self.end()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def poll(self) -> int | None:
        """Return the exit code as a shell reports it; None while the command runs."""
        assert self._process is not None
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, timeout_s: float) -> int | None:
        """Return `poll()` once the command has exited or the timeout has passed."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.poll()

    def end(self) -> None:
        """Terminate the command, and kill it if necessary."""
        assert self._process is not None
        self._process.terminate()
        if self.wait(KILL_S) is None:
            self._process.kill()
            self._process.wait()

    def drain(self) -> None:
        """Wait after the exit until all output has been copied."""
        if self._tee is not None:
            self._tee.join(DRAIN_S)

    def _copy(self, source: int, log: BinaryIO) -> None:
        """Copy error output to ours and to the log until every writer has closed it."""
        size = 0
        while True:
            try:
                data = os.read(source, _CHUNK)
            except OSError:  # A closed terminal raises this at its end.
                data = b""
            if not data:
                break
            with suppress(OSError, ValueError):  # Our stderr is closed; the command's is not.
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
            if self.keeps_log:
                with suppress(OSError):  # The disk is full: the command continues.
                    log.write(data)
                    size += len(data)
                    if size > LOG_BYTES:
                        self.log.replace(self.log.with_name("earlier.log"))
                        log.close()
                        size, log = 0, self.log.open("ab", buffering=0)
        log.close()
        os.close(source)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal, except for Ctrl-C, which the terminal also sends to the command."""
        first, self.stopped = not self.stopped, True
        self.pending_signal = number if first and self.holds else None
        if self.pending_signal is None:
            self._pass_on(number)

    def release(self) -> None:
        """Forward the held signal, unless a second signal has already done so."""
        number, self.pending_signal = self.pending_signal, None
        if number is not None:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        with suppress(OSError, ValueError):
            if number == signal.SIGINT and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                return  # The terminal sends it to the command too.
        if self._process is not None:
            self._process.send_signal(number)


def _channel() -> tuple[int, int]:
    """Return (read end, write end for the command): a terminal if ours is one, so that progress bars work."""
    if not sys.stderr.isatty():
        return os.pipe()
    source, sink = pty.openpty()
    tty.setraw(sink)
    with suppress(OSError):
        size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(sink, termios.TIOCSWINSZ, size)
    return source, sink
