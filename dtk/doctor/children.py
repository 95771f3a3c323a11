"""Runs the doctor's own child processes: one or several, with a limit, ended by their ids. Knows none of the checks.

A child prints one JSON object a line on standard output, so that what it had reached is known when it has to be killed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from dtk.launch.processes import importable

POLL_S = 0.05
SAID_CHARACTERS = 300
"""Of the last line of a child's errors that is shown."""
GRACE_S = 3.0
"""How long the others may go on after one child failed."""
_live: "set[subprocess.Popen[bytes]]" = set()
"""Children that run now: those of a check that is left behind, or cut off by Ctrl-C, have to be ended as well."""


@dataclass(slots=True)
class Said:
    """What a child left."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Why it is not whole; empty = it ended well."""
    late: bool = False
    """It had to be killed at the limit, or because another one failed."""


def run_child(arguments: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Said:
    """Run this Python with some arguments to its end or the limit."""
    return run_children([arguments], timeout_s, [environment or {}])[0]


def run_children(
    commands: Sequence[Sequence[str]], timeout_s: float, environments: Sequence[Mapping[str, str]]
) -> list[Said]:
    """Run several at once; all are killed at the limit, and soon after one of them failed.

    Args:
        commands: arguments of this Python.
        timeout_s: longest wait for all of them, in seconds.
        environments: variables of each, beside those of this process.
    """
    with tempfile.TemporaryFile() as nothing:
        files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in commands]  # noqa: SIM115
        processes = []
        try:
            for command, (out, error), more in zip(commands, files, environments, strict=True):
                processes.append(_start(command, nothing, out, error, more))
            _wait(processes, time.monotonic() + timeout_s)
            late = [process.poll() is None for process in processes]
        finally:
            for process in processes:
                _kill(process)
        return [
            _said(p, out, error, was, timeout_s) for p, (out, error), was in zip(processes, files, late, strict=True)
        ]


def end_all() -> None:
    """End every child that still runs."""
    for process in list(_live):
        _kill(process)


def _start(
    command: Sequence[str], nothing: IO[bytes], out: IO[bytes], error: IO[bytes], more: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    environment = importable({**os.environ, **more})
    process = subprocess.Popen(
        [sys.executable, *command], stdin=nothing, stdout=out, stderr=error, env=environment, start_new_session=True
    )
    _live.add(process)
    return process


def _wait(processes: "list[subprocess.Popen[bytes]]", ends_s: float) -> None:
    while any(process.poll() is None for process in processes) and time.monotonic() < ends_s:
        if any(process.poll() for process in processes):
            ends_s = min(ends_s, time.monotonic() + GRACE_S)
            while any(process.poll() is None for process in processes) and time.monotonic() < ends_s:
                time.sleep(POLL_S)
            return
        time.sleep(POLL_S)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a child and what it started."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # One that is stuck in a driver cannot be killed.
        process.wait(timeout=2)
    _live.discard(process)


def _said(process: "subprocess.Popen[bytes]", out: IO[bytes], error: IO[bytes], late: bool, timeout_s: float) -> Said:
    records = []
    for line in _content(out).splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    if late:
        return Said(records, f"no answer in {timeout_s:.0f} s", late=True)
    if process.returncode:
        lines = [line.strip() for line in _content(error).splitlines() if line.strip()]
        why = next((record["error"] for record in reversed(records) if "error" in record), lines[-1] if lines else "")
        ended = (
            f"killed by signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        )
        return Said(records, f"{ended}: {str(why)[:SAID_CHARACTERS]}" if why else ended)
    return Said(records)


def _content(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read(16 << 20).decode("utf-8", "replace")
