"""Figures of the CPU from trees of both versions of cgroups."""

import os
from pathlib import Path

import pytest

from dtk.record.telemetry import cpu_figures

STAT = "usage_usec 9\nnr_periods 50\nnr_throttled 20\nthrottled_usec 7\n"


def tree(folder: Path, own: str, **files: str) -> tuple[Path, Path]:
    """Write `/proc/self/cgroup` and files below the mount; `__` stands for a slash, `_dot_` for a dot."""
    for name, text in files.items():
        path = folder / "fs" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return folder / "fs", folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/job\n", {"job__cpu_dot_stat": STAT, "job__cpu_dot_max": "150000 100000\n"}, 1.5),
        ("0::/host/path\n", {"cpu_dot_stat": STAT, "cpu_dot_max": "max 100000\n"}, None),  # As in a container.
        (
            "9:name=systemd:/\n4:memory:/m\n1:cpu,cpuacct:/job\n0::/\n",
            {
                "cpu,cpuacct__job__cpu_dot_stat": STAT,
                "cpu,cpuacct__job__cpu_dot_cfs_quota_us": "50000\n",
                "cpu,cpuacct__job__cpu_dot_cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_both_versions(tmp_path: Path, own: str, files: dict[str, str], cores: float | None) -> None:
    figures = cpu_figures(*tree(tmp_path, own, **files))
    assert (figures["cgroup_periods"], figures["cgroup_throttled_periods"]) == (50, 20)
    assert figures.get("cgroup_cores") == cores


@pytest.mark.parametrize("stat", ["", "nr_throttled many\nnr_periods 3\n", "usage_usec 3\n"])
def test_what_is_not_there_is_left_out(tmp_path: Path, stat: str) -> None:
    figures = cpu_figures(*tree(tmp_path, "0::/\n", cpu_dot_stat=stat))
    assert figures == {"usable_cores": len(os.sched_getaffinity(0))}
    assert cpu_figures(tmp_path, tmp_path / "nothing") == figures
