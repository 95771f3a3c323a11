"""Checks whether the process in a manifest still runs here, by id and start time, as ids are reused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_STATE, _START = 0, 19  # Places after the command's name in /proc/PID/stat: fields 3 and 22 of proc_pid_stat(5).


def process_start(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None if it has exited or is inaccessible."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = stat[stat.rindex(")") + 1 :].split()  # The command's name before it may hold anything.
        return None if fields[_STATE] in "ZX" else int(fields[_START])
    except (OSError, ValueError, IndexError):
        return None


def still_runs(manifest: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote a manifest is alive; None if that cannot be determined here.

    Args:
        manifest: content of manifest.json; one without `pid_start` is trusted by its `pid` alone.
    """
    pid, began = manifest.get("pid"), manifest.get("pid_start")
    from socket import gethostname  # Imported here, as few commands look for processes.

    if manifest.get("host") != gethostname() or not isinstance(pid, int):
        return None
    now = process_start(pid)
    if now is None and process_start(os.getpid()) is None:
        return None  # No such system.
    return now is not None and (not isinstance(began, int) or began == now)
