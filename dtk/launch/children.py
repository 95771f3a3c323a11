"""Rank processes that this process starts: messages (`dtk.rank.child.send_record`), exit codes and last errors."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any

from diagnostics.evidence import endings
from dtk.launch.processes import free_port, importable, killed_by
from dtk.parallel import loopback

SHOWN = 300  # Chosen: characters of an error message, two or three lines of a terminal.
KILLED_S = 2.0  # Chosen: a killed child exits at once unless a driver blocks it, and then no timeout is enough.
Environments = dict[int, dict[str, str]]  # Rank -> all variables of its process.
_live: "set[Children]" = set()  # Children to kill if nothing waits for them any more.


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank that did not finish."""

    rank: int
    ended: str
    """`was killed by SIGKILL`, `ended with exit code 3`, `failed`"""
    error: str
    """Its error: `RuntimeError: ...`, else its last line of output; empty if there is none."""
    victim: bool
    """Whether it reports the loss of another rank, so that it is not the cause."""

    def __str__(self) -> str:
        """Format as `failed: RuntimeError: ...`, to follow the rank."""
        return f"{self.ended}: {self.error}" if self.error else self.ended


class Children:
    """Ranks of one launch on this machine; a context manager."""

    def __init__(self, arguments: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        self.arguments = arguments
        self.environments = environments
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._errors: dict[int, tuple[str, str]] = {}  # Rank -> class and message of the exception that it reported.
        self._lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self._logs: dict[int, IO[str]] = {}
        self._open = len(environments)

    def __enter__(self) -> "Children":
        _live.add(self)
        for rank, environment in self.environments.items():
            self._logs[rank] = tempfile.TemporaryFile("w+", errors="replace")
            self._processes[rank] = subprocess.Popen(
                [sys.executable, *self.arguments], env=importable(environment), text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._logs[rank], start_new_session=True,
            )  # fmt: skip
            threading.Thread(target=self._read, args=(rank, self._processes[rank]), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        _live.discard(self)
        for log in self._logs.values():
            log.close()

    def lines(self, wait_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, message) since the last call, waiting up to `wait_s` seconds for the first one."""
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
            except ValueError:  # Other output of a library.
                continue
            if isinstance(line, dict):
                if "error" in line:
                    self._errors[rank] = str(line.get("type", "")), str(line["error"])[:SHOWN]
                yield rank, line

    @property
    def running(self) -> set[int]:
        """Ranks whose process has not exited."""
        return {rank for rank, process in self._processes.items() if process.poll() is None}

    @property
    def ended(self) -> bool:
        """Whether all ranks have exited and all their messages were returned."""
        return self._open == 0 and not self.running

    def failed(self) -> list[Failed]:
        """Return the ranks that have failed so far."""
        return [self._why(rank, code) for rank, process in self._processes.items() if (code := process.poll())]

    def kill(self) -> None:
        """Kill all ranks and their children immediately; their further output is not needed."""
        for rank in self.running:
            with suppress(OSError):
                os.killpg(self._processes[rank].pid, signal.SIGKILL)
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S)

    def _read(self, rank: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for text in process.stdout:
                self._lines.put((rank, text))
        self._lines.put((rank, None))

    def _why(self, rank: int, code: int) -> Failed:
        if code < 0:
            kind = endings.kind_of_exit_code(code)  # Of a library's abort a peer is the likelier reason.
            victim = endings.is_victim(kind) or kind == "aborted"
            return Failed(rank, f"was {killed_by(signal.Signals(-code).name)}", "", victim)
        log = self._logs[rank]
        log.seek(0)
        lines = [line[:SHOWN] for line in log.read()[-65536:].splitlines() if line.strip()]
        # A rank that failed before it could report, for example because torch cannot be imported, has left a traceback.
        error_line = endings.last_exception_line(lines)
        if rank not in self._errors and not error_line:
            last = "".join(lines[-1:]).strip()
            return Failed(
                rank, f"ended with exit code {code}", last, victim=endings.is_victim(endings.kind_of_exit_code(code))
            )
        type_, message = self._errors.get(rank) or endings.exception_of_line(error_line)
        error = f"{type_}: {message}" if type_ else message
        return Failed(rank, "failed", error, victim=endings.is_victim(endings.kind_of_exception(type_, message)))


def end_all() -> None:
    """Kill every child of this process that still runs, including those of an abandoned check."""
    for children in list(_live):
        children.kill()


def local_ranks(world_size: int, threads: int, variables: Mapping[str, str] = MappingProxyType({})) -> Environments:
    """Return the environments of ranks that meet at a free port of this machine's loopback."""
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": loopback.ADDRESS, "MASTER_PORT": str(free_port())}
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    common = inherited({**loopback.interface_variables(), **variables}, **shared)
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)}


def inherited(variables: Mapping[str, str], **own: str) -> dict[str, str]:
    """Return `variables` overlaid with the user's environment, without the elastic agent's, and `own` on top."""
    users = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {**variables, **users, **own}


def culprit(failed: Sequence[Failed]) -> Failed:
    """Return the failure to report: one that only lost another rank is the last choice."""
    return min(failed, key=lambda failure: (failure.victim, failure.rank))
