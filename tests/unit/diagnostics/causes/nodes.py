"""Telemetry of a node as dtk's runs write it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics.contract.findings import Finding
from diagnostics.diagnose import diagnose

GPU = {"utilization_percent": 98, "memory_used_bytes": 1 << 30, "memory_total_bytes": 80 << 30, "sm_clock_mhz": 1755,
       "throttle_reasons": ["software_power_cap"], "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16,
       "pcie_width_max": 16}  # fmt: skip


def telemetry(
    *,
    host: Sequence[Mapping[str, Any]] = ({},),
    gpus: Sequence[Mapping[str, Any]] = (),
    ranks: int = 2,
    count: int = 60,
) -> str:
    """A file of `count` samples a second; of several hosts each stands for the same number of seconds.

    `gpus`: what each device says differently from a healthy one.
    """
    lines: list[dict[str, Any]] = [{"kind": "about", "time_s": 1e9, "cores": 16, "every_s": 1.0}]
    for n in range(count):
        own = {"memory_total_bytes": 1 << 37, "memory_used_bytes": 1 << 33, "usable_cores": 16,
               "ranks_in_disk_wait": [], "rank_rss_bytes": {str(rank): 1 << 30 for rank in range(ranks)}}  # fmt: skip
        devices = [{**GPU, "index": at, **gpu} for at, gpu in enumerate(gpus)]
        stage = host[n * len(host) // count]
        figures = {key: value[0] + n * value[1] if isinstance(value, tuple) else value for key, value in stage.items()}
        lines.append({"kind": "sample", "time_s": 1e9 + n, "gpu": devices or None, "host": own | figures})
    return "".join(json.dumps(line) + "\n" for line in lines)


def decided(folder: Any, cause: str) -> Finding:
    """Diagnose a folder; what it says of one cause."""
    (finding,) = [item.finding for item in diagnose(folder).findings if item.finding.cause == cause]
    return finding
