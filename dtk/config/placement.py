"""Placement of a job's ranks: device, backend and number of ranks, with the reasons. Never initializes CUDA."""

import dataclasses
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.analysis.processes import usable_cores
from diagnostics.contract.files import kernel_fields, kernel_text
from diagnostics.contract.formatting import counted
from dtk.config.limits import check_numbers
from dtk.config.schema import Config, LauncherConfig, RemoteLauncher
from dtk.errors import DtkError, Errors, refused
from dtk.sharding.traits import StrategyConfig

_errors = Errors(__file__)
CPU_RANKS = 2  # Number of ranks on a machine without a GPU: the smallest that communicates.
_MOST_CPU_RANKS = 16  # Largest number of ranks that is started on a machine without a GPU because a mesh needs them.
RANKS_PER_CORE = 16
"""Starting a rank (importing torch, joining) takes 4 s of one core, measured: more ranks would take minutes."""
RANK_BYTES = 300 << 20
"""Measured resident set of a CPU rank with a tiny model: 330 MiB, some of it shared between ranks."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen placement, with the reasons for the banner."""

    nproc: int
    """Ranks per node."""
    world_size: int
    device: str
    backend: str
    threads: int
    """CPU threads per rank."""
    cuda_devices: int
    reasons: tuple[str, ...]


def cpu_ranks(config: Config) -> int:
    """Return the default number of ranks without a GPU: the smallest that the degrees of the mesh divide."""
    for ranks in range(CPU_RANKS, _MOST_CPU_RANKS + 1):
        with suppress(DtkError):
            config.mesh(ranks)
            return ranks
    return CPU_RANKS


def place(
    launcher: LauncherConfig,
    strategy: StrategyConfig,
    cuda_devices: int,
    local_size: int | None = None,
    on_cpu: int = CPU_RANKS,
) -> Placement:
    """Resolve every `auto` of the launcher section for one node; `on_cpu` ranks are the default without a GPU.

    DtkError if CUDA or NCCL is unavailable, or the number of ranks is below one or too large for this machine.
    """
    reasons = []
    device = launcher.device
    if device == "auto":
        device = "cuda" if cuda_devices else "cpu"
        reasons.append(f"{counted(cuda_devices, 'CUDA device')} found")
    backend = _backend(launcher, device)
    check_device(device, backend, cuda_devices)
    nproc = launcher.nproc if local_size is None else local_size
    if nproc == "auto":
        if strategy.traits.one_process:
            nproc, why = 1, f"strategy {strategy.name} is one process"
        elif device == "cuda":
            nproc, why = cuda_devices, "one per CUDA device"
        else:
            nproc, why = on_cpu, "the default without a GPU"
        reasons.append(f"{counted(nproc, 'rank')}: {why}")
    _errors.refuse({"nproc": nproc < 1}, nproc=nproc)
    if local_size is None and not getattr(launcher, "oversubscribe", False):
        _check_host(nproc)
    too_few = backend == "nccl" and nproc > cuda_devices
    _errors.refuse({"too_few_devices": too_few}, nproc=nproc, devices=cuda_devices)
    threads = own_threads() if launcher.threads == "auto" else launcher.threads
    if launcher.threads == "auto" and threads is not None and local_size is None:  # Otherwise it may be torchrun's.
        reasons.append("threads: your OMP_NUM_THREADS")
    if threads is None:
        threads = max(1, usable_cores() // nproc)
    return Placement(nproc, nproc, device, backend, threads, cuda_devices, tuple(reasons))


def check_device(device: str, backend: str, cuda_devices: int) -> None:
    """Refuse CUDA or NCCL where there is no CUDA device for it; DtkError with the alternative."""
    no_gpu = backend == "nccl" and device != "cuda"
    _errors.refuse({"no_device": device == "cuda" and not cuda_devices, "no_gpu_for_nccl": no_gpu})


def _backend(launcher: LauncherConfig, device: str) -> str:
    return ("nccl" if device == "cuda" else "gloo") if launcher.backend == "auto" else launcher.backend


def _check_host(nproc: int) -> None:
    """Reject more ranks than this machine can start, and name the largest possible number."""
    cores, memory = usable_cores(), host_memory()
    fits = {f"{counted(cores, 'CPU core')} here, at most {RANKS_PER_CORE} ranks each": RANKS_PER_CORE * cores}
    if memory is not None:
        free_gib = memory[1] / 2**30
        fits[f"{free_gib:.1f} GiB of host memory are free, and a rank needs at least 0.3"] = memory[1] // RANK_BYTES
    why = min(fits, key=lambda reason: fits[reason])
    most = max(1, fits[why])
    _errors.refuse({"host": nproc > most}, nproc=nproc, why=why, most=most)


def host_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """Return (host memory, available memory) in bytes within the container's limit; None if unknown."""
    fields = kernel_fields(meminfo)
    try:
        whole, free = (1024 * int(fields[name].removesuffix("kB")) for name in ("MemTotal", "MemAvailable"))
    except (ValueError, KeyError):
        return None
    with suppress(ValueError):  # `max`, or no such cgroup.
        limit, used = (int(kernel_text(group / name)) for name in ("memory.max", "memory.current"))
        whole, free = min(whole, limit), min(free, max(0, limit - used))
    return whole, free


def own_threads() -> int | None:
    """Return the number of threads in the user's OMP_NUM_THREADS; None if unset or invalid."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else None


def check_port(port: int) -> None:
    """Check that the rendezvous can listen on the port (0 = any); DtkError if the port is in use or not allowed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        fix = "choose another, or launcher.master_port=0 for a free one"
        with refused(f"launcher.master_port={port} cannot be used", fix):
            probe.bind(("127.0.0.1", port))


def is_remote(launcher: Any) -> bool:
    """Whether the job runs on other machines."""
    return isinstance(launcher, RemoteLauncher)


def ranks_per_node(launcher: RemoteLauncher, strategy: StrategyConfig) -> int:
    """Return the configured number, else one per GPU, else the default of a machine without a GPU."""
    if launcher.nproc != "auto":
        return launcher.nproc
    return 1 if strategy.traits.one_process else launcher.gpus_per_node or CPU_RANKS


def remote_placement(config: Config) -> Placement:
    """Return the device, backend and ranks per node of the job after checking the rules between them; DtkError if a
    number is out of range, the strategy has fewer processes, or nodes have too few GPUs.
    """
    check_numbers({"launcher": dataclasses.asdict(config.launcher)})
    launcher, strategy = config.launcher, config.strategy
    device = ("cuda" if launcher.gpus_per_node else "cpu") if launcher.device == "auto" else launcher.device
    backend = _backend(launcher, device)
    nproc = ranks_per_node(launcher, strategy)
    gpus = launcher.gpus_per_node
    rules = {
        "one_process": strategy.traits.one_process and launcher.nodes > 1,
        "no_gpus": device == "cuda" and not gpus,
        "idle_nodes": device == "cpu" and gpus,
        "remote_nccl": backend == "nccl" and device != "cuda",
        "too_few_gpus": backend == "nccl" and nproc > gpus,
        "idle_gpus": device == "cuda" and nproc < gpus and launcher.nproc != "auto",
    }
    figures = {"strategy": strategy.name, "nodes": launcher.nodes, "nproc": nproc, "gpus": gpus, "idle": gpus - nproc}
    _errors.refuse(rules, **figures)
    threads = launcher.threads if isinstance(launcher.threads, int) else launcher.cpus_per_rank or 0
    devices = gpus if device == "cuda" else 0
    return Placement(nproc, launcher.nodes * nproc, device, backend, threads, devices, ())


def tp_warning(config: Config, world_size: int, local_size: int) -> str:
    """Return the warning that tensor-parallel groups cross nodes with `local_size` ranks; empty if none does."""
    parallel = config.parallel
    if parallel.tp == 1 or not config.mesh(world_size).crosses("tp", local_size):
        return ""
    fix = "a degree that divides the node" if parallel.placement == "tp" else "parallel.placement=tp"
    waits = f"every layer waits for the links between them; use {fix}"
    return f"parallel.tp={parallel.tp} crosses nodes of {counted(local_size, 'rank')}: {waits}"
