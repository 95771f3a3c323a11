"""Checks whether the process in a manifest still runs here, by id and start time, as ids are reused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnostics.contract.files import stat_fields

PROC = Path("/proc")
_STATE, _PARENT, _START = 0, 1, 19
"""Places after the command's name in /proc/PID/stat: fields 3, 4 and 22 of proc_pid_stat(5)."""


def process_start(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None if it has exited or is inaccessible."""
    try:
        fields = stat_fields(PROC / str(pid))
        return None if fields[_STATE] in "ZX" else int(fields[_START])
    except (ValueError, IndexError):
        return None


def suspended(pid: int, manifest: Mapping[str, Any]) -> bool:
    """Return whether a rank's process is stopped by a signal or a debugger; False if it cannot be seen here.

    Ids are reused, so the process has to be a child of the run's, which is alive here, or its sibling.
    """
    stat, of_run = stat_fields(PROC / str(pid)), manifest.get("pid")
    if len(stat) <= _PARENT or stat[_STATE] not in "Tt" or not isinstance(of_run, int):
        return False
    above = PROC / str(of_run)
    return pid == of_run or int(stat[_PARENT]) in (of_run, *map(int, stat_fields(above)[_PARENT : _PARENT + 1]))


def still_runs(manifest: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote a manifest is alive; None if that cannot be determined here.

    A manifest without `pid_start` is trusted by its `pid` alone.
    """
    pid, began = manifest.get("pid"), manifest.get("pid_start")
    from socket import gethostname  # Imported here, as few commands look for processes.

    if manifest.get("host") != gethostname() or not isinstance(pid, int):
        return None
    now = process_start(pid)
    if now is None and process_start(os.getpid()) is None:
        return None  # No such system.
    return now is not None and (not isinstance(began, int) or began == now)
