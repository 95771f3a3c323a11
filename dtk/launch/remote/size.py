"""How many ranks a job beyond this machine has, and where they lie: by its configuration, never by this hardware."""

import dataclasses
from typing import Any

from diagnostics.contract.formatting import counted
from dtk.config.limits import check_numbers
from dtk.config.schema import Config, RemoteLauncher
from dtk.errors import DtkError
from dtk.launch.placement import CPU_RANKS, Placement

ONE_PROCESS = ("single", "dp")
"""Strategies of one process, however many ranks others would have."""


def is_remote(launcher: Any) -> bool:
    """Whether the job starts on other machines than this one."""
    return isinstance(launcher, RemoteLauncher)


def ranks_per_node(launcher: RemoteLauncher, strategy: str) -> int:
    """As asked for, else one per GPU, else as many as a machine without a GPU has.

    Args:
        launcher: the section.
        strategy: name of the strategy.
    """
    if launcher.nproc != "auto":
        return launcher.nproc
    if strategy in ONE_PROCESS:
        return 1
    return launcher.gpus_per_node or CPU_RANKS


def placement(config: Config) -> Placement:
    """Device, backend and ranks per node of the job, with every rule between them checked.

    Raises:
        DtkError: a number out of range, more processes than the strategy has, GPUs that no node gives.
    """
    check_numbers({"launcher": dataclasses.asdict(config.launcher)})
    launcher: RemoteLauncher = config.launcher
    strategy = config.strategy.name
    if strategy in ONE_PROCESS and launcher.nodes > 1:
        raise DtkError(
            f"strategy={strategy} is one process, not {counted(launcher.nodes, 'node')}", fix="use launcher.nodes=1"
        )
    device = ("cuda" if launcher.gpus_per_node else "cpu") if launcher.device == "auto" else launcher.device
    backend = ("nccl" if device == "cuda" else "gloo") if launcher.backend == "auto" else launcher.backend
    nproc = ranks_per_node(launcher, strategy)
    _check_gpus(launcher, device, backend, nproc)
    threads = launcher.threads if isinstance(launcher.threads, int) else launcher.cpus_per_rank or 0
    return Placement(nproc, device, backend, threads, launcher.gpus_per_node if device == "cuda" else 0, ())


def _check_gpus(launcher: RemoteLauncher, device: str, backend: str, nproc: int) -> None:
    gpus = launcher.gpus_per_node
    if device == "cuda" and not gpus:
        raise DtkError(
            "launcher.device=cuda, but launcher.gpus_per_node=0", fix="use launcher.gpus_per_node=8, or as many as are"
        )
    if device == "cpu" and gpus:
        raise DtkError(
            f"launcher.device=cpu leaves the {counted(gpus, 'GPU')} of each node idle",
            fix="use launcher.gpus_per_node=0",
        )
    if backend == "nccl" and device != "cuda":
        raise DtkError(
            "launcher.backend=nccl needs a GPU", fix="use launcher.gpus_per_node=8, or launcher.backend=gloo"
        )
    if backend == "nccl" and nproc > gpus:
        raise DtkError(
            f"launcher.nproc={nproc} is more than launcher.gpus_per_node={gpus}",
            "NCCL needs a device per rank",
            f"use launcher.nproc={gpus}",
        )
    if device == "cuda" and nproc < gpus and launcher.nproc != "auto":
        raise DtkError(
            f"launcher.nproc={nproc} leaves {counted(gpus - nproc, 'GPU')} of each node idle",
            f"launcher.gpus_per_node={gpus}",
            f"use launcher.gpus_per_node={nproc} or launcher.nproc={gpus}",
        )
