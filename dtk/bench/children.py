"""The processes of ranks that this process starts: their lines, their end, and what one that failed said.

Knows no bench figures. A child lives no longer than the `Children` it belongs to.
"""

import json
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from diagnostics.evidence.endings import is_victim, kind_of_reason
from dtk.launch.processes import importable

SHOWN = 300
"""Characters of an error that are told."""
_ERROR_LINE = re.compile(r"[\w.]*(Error|Exception)\b.*")


@dataclass(frozen=True, slots=True)
class Failed:
    """One rank that did not come to its end."""

    rank: int
    ended: str
    """`was killed by SIGKILL`, `ended with exit code 3`, `failed`"""
    error: str
    """What it said of it: `RuntimeError: ...`; empty when it said nothing."""
    victim: bool
    """Whether it says that it lost another rank, so that it is not the cause."""

    def __str__(self) -> str:
        """Return `failed: RuntimeError: ...`, as it follows the rank."""
        return f"{self.ended}: {self.error}" if self.error else self.ended


class Children:
    """Ranks of one launch that run on this machine. Use as a context."""

    def __init__(
        self, ranks: Sequence[int], arguments: Sequence[str], environments: Sequence[Mapping[str, str]]
    ) -> None:
        self.ranks = ranks
        self.arguments = arguments
        self.environments = environments
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._said: dict[int, str] = {}
        """Rank -> the error that it reported."""
        self._lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self._logs: dict[int, IO[str]] = {}
        self._open = len(ranks)

    def __enter__(self) -> "Children":
        for rank, environment in zip(self.ranks, self.environments):
            self._logs[rank] = tempfile.TemporaryFile("w+", errors="replace")
            process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                env=importable(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._logs[rank],
                text=True,
                errors="replace",
            )
            self._processes[rank] = process
            threading.Thread(target=self._read, args=(rank, process), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for log in self._logs.values():
            log.close()

    def lines(self, wait_s: float) -> Iterator[dict[str, Any]]:
        """Yield what the ranks have reported since the last call, waiting up to `wait_s` seconds for the first line."""
        first = True
        while True:
            try:
                rank, text = self._lines.get(timeout=wait_s) if first else self._lines.get_nowait()
            except queue.Empty:
                return
            first = False
            if text is None:
                self._open -= 1
                continue
            try:
                line = json.loads(text)
            except ValueError:  # A library wrote to standard output.
                continue
            if isinstance(line, dict):
                if "error" in line:
                    self._said[rank] = str(line["error"])[:SHOWN]
                yield line

    @property
    def ended(self) -> bool:
        """Whether all have ended and everything they told was handed over."""
        return self._open == 0 and all(process.poll() is not None for process in self._processes.values())

    def failed(self) -> list[Failed]:
        """Those that have failed so far."""
        return [self._why(rank, code) for rank, process in self._processes.items() if (code := process.poll())]

    def kill(self) -> None:
        """End all at once; nothing they would write on the way is wanted."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        for process in self._processes.values():
            process.wait()

    def _read(self, rank: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for text in process.stdout:
                self._lines.put((rank, text))
        self._lines.put((rank, None))

    def _why(self, rank: int, code: int) -> Failed:
        if code < 0:
            name = signal.Signals(-code).name
            memory = " (the kernel does this when memory runs out: see dmesg)" if name == "SIGKILL" else ""
            return Failed(rank, f"was killed by {name}{memory}", "", victim=-code == signal.SIGABRT)
        error = self._said.get(rank) or self._last_error(rank)
        ended = "failed" if error else f"ended with exit code {code}"
        return Failed(rank, ended, error, victim=is_victim(kind_of_reason(error or ended)))

    def _last_error(self, rank: int) -> str:
        """Of a rank that failed before it could tell, as where torch cannot be imported."""
        log = self._logs[rank]
        log.seek(0)
        lines = log.read()[-65536:].splitlines()
        return next((found[0][:SHOWN] for line in reversed(lines) if (found := _ERROR_LINE.match(line))), "")


def culprit(failed: Sequence[Failed]) -> Failed:
    """Return the failure to report; a rank that only lost another rank is chosen last."""
    return min(failed, key=lambda one: (one.victim, one.rank))
