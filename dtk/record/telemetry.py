"""telemetry/node_XXXXX.jsonl: samples of devices and host, from one thread per node on local_rank 0."""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from diagnostics.analysis.processes import usable_cores
from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths, read_heartbeat
from diagnostics.contract.files import kernel_text
from dtk.record.activity import scheduled_s
from dtk.record.guard import STOP_S, JsonLines, guarded
from dtk.record.nvml import Device, find_device, open_nvml

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
SYSTEM = Path("/sys")


def cuda_uuids(device: torch.device) -> list[str]:
    """Return the UUIDs of the CUDA devices that this node's ranks use; empty if the run is on the CPU."""
    if device.type != "cuda":
        return []
    used = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", torch.cuda.device_count())))
    return [str(torch.cuda.get_device_properties(i).uuid) for i in range(used)]


@dataclass(eq=False)
class Telemetry:
    """Samples every `every_s` seconds until closed. The first line lists what is sampled and what is not supported."""

    lines: JsonLines
    paths: RunPaths
    rank: int
    every_s: float
    uuids: Callable[[], list[str]]

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtk-telemetry", daemon=True)

    def start(self) -> None:
        """Start the thread, which also initializes NVML; that may take a second."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current sample, without waiting for a driver that hangs."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        with guarded("telemetry"):
            devices, nodes = list[Device](), dict[str, int]()
            uuids, (nvml, reason) = self.uuids(), open_nvml()
            if nvml is not None:
                try:
                    devices = [find_device(nvml, uuid, i) for i, uuid in enumerate(uuids)]
                    infos = [nvml.nvmlDeviceGetPciInfo(device.handle) for device in devices]  # By local rank.
                    nodes = {str(self.rank + local): device_numa_node(pci) for local, pci in enumerate(infos)}
                    reason = "the run uses no CUDA device"
                except nvml.NVMLError as error:
                    reason = f"NVML: {error}"
            host = Host(self.paths, self.rank, nodes)
            names = ("index", "uuid", "name", "signals", "unsupported")
            gpu = [{name: getattr(device, name) for name in names} for device in devices]
            about = {"kind": "about", "schema_version": SCHEMA_VERSION, "time_s": time.time()}
            about |= {"host": socket.gethostname(), "cores": psutil.cpu_count(), "every_s": self.every_s}
            self.lines.append(about | ({"gpu": gpu} if gpu else {"gpu": None, "gpu_reason": reason}))
            while not self._stop.wait(self.every_s):
                record = {"kind": "sample", "time_s": time.time(), "gpu": None, "host": host.sample()}
                now = [device.sample(nvml) for device in devices]
                self.lines.append({**record, "gpu": now} if now else {**record, "gpu_reason": reason})


class Host:
    """Samples of this machine: CPU, memory, the node's ranks, network counters."""

    def __init__(self, paths: RunPaths, first_rank: int, gpu_nodes: Mapping[str, int]) -> None:
        self._gpu_nodes = gpu_nodes
        # Launchers number the ranks of one node consecutively, starting with local_rank 0.
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._heartbeats = {rank: paths.heartbeat(rank) for rank in range(first_rank, first_rank + local_size)}
        self._processes: dict[int, psutil.Process] = {first_rank: psutil.Process()}
        self._timed: set[int] = set()  # Ranks whose CPU time was read in the last sample.
        psutil.cpu_percent()  # The first call only starts the interval.
        psutil.cpu_times_percent()

    def sample(self) -> dict[str, Any]:
        """Return percentages since the last sample, and counters since the machine, process or cgroup started."""
        memory, network = psutil.virtual_memory(), psutil.net_io_counters()
        busy, (resident, waiting, own) = psutil.cpu_percent(), self._ranks()
        sample: dict[str, Any] = {"cpu_percent": busy, "rank_rss_bytes": resident, "ranks_in_disk_wait": waiting}
        scheduled = {str(rank): scheduled_s(process.pid) for rank, process in self._processes.items()}
        sample["rank_core_wait_s"] = {rank: times and round(times[1], 3) for rank, times in scheduled.items()}
        sample |= {"rank_numa_nodes": {}, "rank_gpu_numa_node": self._gpu_nodes}
        sample |= {"memory_used_bytes": memory.total - memory.available, "memory_total_bytes": memory.total}
        sample |= cpu_figures()
        sample["others_cpu_percent"] = None if own is None else round(max(0.0, busy - own), 1)
        sample["stolen_cpu_percent"] = getattr(psutil.cpu_times_percent(), "steal", None)
        for rank, process in self._processes.items():
            with suppress(psutil.Error, AttributeError):  # Only Linux has affinities and NUMA nodes to read.
                sample["rank_numa_nodes"][str(rank)] = numa_nodes(tuple(process.cpu_affinity()))
        if network is not None:
            sample |= {"network_sent_bytes": network.bytes_sent, "network_received_bytes": network.bytes_recv}
            sample |= {"network_errors": network.errin + network.errout}
            sample |= {"network_drops": network.dropin + network.dropout}
        return sample

    def _ranks(self) -> tuple[dict[str, int], list[int], float | None]:
        """Return resident bytes by rank, ranks in uninterruptible sleep (state D), and their share of all cores."""
        for rank, path in self._heartbeats.items():
            if rank not in self._processes and (beat := read_heartbeat(path)) is not None:
                with suppress(psutil.Error):
                    if beat.host == socket.gethostname():
                        self._processes[rank] = psutil.Process(beat.pid)
        resident: dict[str, int] = {}
        waiting, used = [], 0.0
        before, self._timed = self._timed, set()
        for rank, process in list(self._processes.items()):
            try:
                resident[str(rank)] = process.memory_info().rss
                waiting += [rank] if process.status() == psutil.STATUS_DISK_SLEEP else []
                used += process.cpu_percent()
                self._timed.add(rank)
            except psutil.Error:
                self._processes.pop(rank)
        # In percent since the last sample; unknown until every rank was sampled twice.
        is_complete = set(self._heartbeats) <= before & self._timed
        return resident, waiting, used / (psutil.cpu_count() or 1) if is_complete else None


@cache
def numa_nodes(cpus: tuple[int, ...], root: Path = SYSTEM) -> list[int]:
    """Return the NUMA nodes that the CPUs belong to; empty if sysfs does not tell."""
    folders = root.glob("devices/system/node/node[0-9]*")
    return sorted(int(folder.name[4:]) for folder in folders if any((folder / f"cpu{cpu}").exists() for cpu in cpus))


def device_numa_node(pci: Any, root: Path = SYSTEM) -> int:
    """Return the NUMA node of a PCI device, given as NVML does; -1 if the kernel does not know it."""
    return int(kernel_text(root / f"bus/pci/devices/{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0/numa_node") or -1)


def cpu_figures(root: Path = ROOT, own: Path = OWN) -> dict[str, float]:
    """Return the cores of this process, and the counters of its cgroup since its creation.

    `usable_cores` is the affinity; `cgroup_cores` the quota in cores, absent without one; `cgroup_periods` and
    `cgroup_throttled_periods` count scheduler periods, and those in which the quota was exhausted. Source:
    Documentation/admin-guide/cgroup-v2.rst (cpu.stat, cpu.max) and scheduler/sched-bwc.rst (version 1).
    """
    figures: dict[str, float] = {"usable_cores": usable_cores()}
    folder = _folder(root, own)
    if folder is None:
        return figures
    with suppress(KeyError, ValueError):
        stat = dict(line.split(None, 1) for line in kernel_text(folder / "cpu.stat").splitlines())
        counts = int(stat["nr_periods"]), int(stat["nr_throttled"])
        figures["cgroup_periods"], figures["cgroup_throttled_periods"] = counts
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(ValueError):
            quota, period = " ".join(kernel_text(folder / name) for name in names).split()
            if quota not in ("max", "-1"):
                figures["cgroup_cores"] = int(quota) / int(period)
    return figures


@cache
def _folder(root: Path, own: Path) -> Path | None:
    """Return the folder of this process's cgroup that counts CPU periods; None if there is none."""
    for line in kernel_text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mount = root / controllers if controllers else root
            # In a container the path in /proc may be the host's, and its own cgroup is at the root of the mount.
            for folder in (mount / path.lstrip("/"), mount):
                if "nr_throttled" in kernel_text(folder / "cpu.stat"):
                    return folder
    return None
