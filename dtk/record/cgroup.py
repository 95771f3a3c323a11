"""What this process may use of the CPU, and how often its cgroup held it back. Standard library only."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_figures(root: Path = ROOT, own: Path = OWN) -> dict[str, float]:
    """Return the cores of this process, and the counters of its cgroup since the cgroup was made.

    `usable_cores` is the affinity; `cgroup_cores` the quota in cores, absent without one; `cgroup_periods` and
    `cgroup_throttled_periods` are the scheduler's periods, and those of them in which the quota was used up.
    Source: Documentation/admin-guide/cgroup-v2.rst (cpu.stat, cpu.max) and scheduler/sched-bwc.rst (version 1).
    """
    figures: dict[str, float] = {}
    if hasattr(os, "sched_getaffinity"):
        figures["usable_cores"] = len(os.sched_getaffinity(0))
    folder = _folder(root, own)
    if folder is None:
        return figures
    with suppress(OSError, ValueError):
        stat = dict(line.split(None, 1) for line in (folder / "cpu.stat").read_text().splitlines())
        counts = int(stat["nr_periods"]), int(stat["nr_throttled"])
        figures["cgroup_periods"], figures["cgroup_throttled_periods"] = counts
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                figures["cgroup_cores"] = int(quota) / int(period)
    return figures


@cache
def _folder(root: Path, own: Path) -> Path | None:
    """Return the folder of this process's cgroup that counts the CPU's periods; None without one."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mount = root / controllers if controllers else root
            # In a container the path in /proc may be the host's, and its own cgroup lies at the root of the mount.
            for folder in (mount / path.lstrip("/"), mount):
                with suppress(OSError):
                    if "nr_throttled" in (folder / "cpu.stat").read_text():
                        return folder
    return None
