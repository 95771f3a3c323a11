"""Decides device, backend and number of ranks on this machine, and says why. Never initialises CUDA."""

import os
import socket
from dataclasses import dataclass
from typing import Any

from diagnostics.contract.formatting import counted
from dtk.config.schema import LauncherConfig
from dtk.errors import DtkError

CPU_RANKS = 2
"""Ranks on a machine without a GPU: the fewest that communicate."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What was decided, with the reasons for the banner."""

    nproc: int
    device: str
    backend: str
    threads: int
    """CPU threads per rank."""
    cuda_devices: int
    reasons: tuple[str, ...]


def place(launcher: LauncherConfig, strategy: Any, cuda_devices: int, local_size: int | None = None) -> Placement:
    """Resolve every `auto` of the launcher section.

    Args:
        launcher: the section.
        strategy: the strategy section; single and dp run in one process.
        cuda_devices: CUDA devices on this machine.
        local_size: ranks on this machine, when torchrun or Slurm has decided that.

    Raises:
        DtkError: CUDA or NCCL asked for where there is none, or less than one rank.
    """
    reasons = []
    device = launcher.device
    if device == "auto":
        device = "cuda" if cuda_devices else "cpu"
        reasons.append(f"device {device}: {counted(cuda_devices, 'CUDA device')} found")
    if device == "cuda" and not cuda_devices:
        raise DtkError("launcher.device=cuda, but no CUDA device was found", fix="use launcher.device=cpu")
    backend = launcher.backend
    if backend == "auto":
        backend = "nccl" if device == "cuda" else "gloo"
    if backend == "nccl" and device != "cuda":
        raise DtkError(
            "launcher.backend=nccl needs a GPU", "NCCL moves data between CUDA devices", "use launcher.backend=gloo"
        )
    nproc = launcher.nproc if local_size is None else local_size
    if nproc == "auto":
        if strategy.name in ("single", "dp"):
            nproc, why = 1, f"strategy {strategy.name} is one process"
        elif device == "cuda":
            nproc, why = cuda_devices, "one per CUDA device"
        else:
            nproc, why = CPU_RANKS, "the default without a GPU"
        reasons.append(f"{counted(nproc, 'rank')}: {why}")
    if nproc < 1:
        raise DtkError(f"launcher.nproc={nproc} is out of range", "it must be 1 or more")
    if backend == "nccl" and nproc > cuda_devices:
        raise DtkError(
            f"launcher.nproc={nproc} is more than the {counted(cuda_devices, 'CUDA device')} here",
            "NCCL needs a device per rank",
            f"use launcher.nproc={cuda_devices} or launcher.backend=gloo",
        )
    threads = own_threads() if launcher.threads == "auto" else launcher.threads
    if launcher.threads == "auto" and threads is not None and local_size is None:  # Else it may be torchrun's.
        reasons.append("threads: your OMP_NUM_THREADS")
    if threads is None:
        threads = max(1, usable_cores() // nproc)
    return Placement(nproc, device, backend, threads, cuda_devices, tuple(reasons))


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_threads() -> int | None:
    """CPU threads that the user's own OMP_NUM_THREADS asks for; None without one that OpenMP would take."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else None


def check_port(port: int) -> None:
    """Make sure that the rendezvous can listen on the port (0 = any).

    Raises:
        DtkError: the port is in use or not allowed.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DtkError(
                f"launcher.master_port={port} cannot be used",
                error.strerror or str(error),
                "choose another, or launcher.master_port=0 for a free one",
            ) from error
