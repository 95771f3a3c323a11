"""Facts of this machine that matter to NCCL, from NVML, /sys, /proc and the environment. Unknown facts are None."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.addresses import interface_inside
from diagnostics.contract.files import kernel_entries, kernel_text
from dtk.record.nvml import nvlinks, open_nvml

SYS, ROOT = Path("/sys"), Path("/")
_VENDORS = {"Amazon EC2": "aws", "Google": "gcp", "Microsoft Corporation": "azure"}  # Vendor name in DMI -> cloud.
P2P_READ = 0  # NVML_P2P_CAPS_INDEX_READ of nvml.h: in some releases of the package its constant is a tuple by mistake.


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as NVML reports it."""

    name: str
    nvlinks: int | None
    """Number of active links; None if NVML does not report it."""


@dataclass(frozen=True, slots=True)
class Rdma:
    """One device of /sys/class/infiniband."""

    name: str
    driver: str
    """Driver: mlx5_core, efa, ...; empty if unknown."""
    link_layer: str
    """InfiniBand, Ethernet or Unspecified; empty if unknown."""
    active: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface that connects this machine to others."""

    name: str
    driver: str
    up: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of one machine, without any judgement."""

    gpus: tuple[Gpu, ...]
    gpu_reason: str
    """Reason why no GPU is listed."""
    driver: str
    """Version of the NVIDIA driver; empty without one."""
    p2p: bool | None
    """Whether all pairs of GPUs have peer access according to NVML; None if unknown or fewer than two GPUs exist."""
    rdma: tuple[Rdma, ...]
    interfaces: tuple[Interface, ...]
    cloud: str
    """Cloud: aws, gcp, azure or oci; empty if unknown."""
    product: str
    """Product name in DMI; on EC2 the instance type."""
    container: bool
    slurm: bool
    shm_bytes: int | None
    """Size of /dev/shm."""

    @property
    def nvlink(self) -> bool | None:
        """Whether the GPUs are connected by NVLink; None if unknown."""
        if len(self.gpus) < 2 or any(gpu.nvlinks is None for gpu in self.gpus):
            return None
        return all(gpu.nvlinks for gpu in self.gpus)


def read_machine(environment: Mapping[str, str], sys: Path = SYS, root: Path = ROOT) -> Machine:
    """Read the facts of this machine."""
    gpus, reason, driver, p2p = _gpus()
    rdma = []
    for path in kernel_entries(sys / "class" / "infiniband"):
        ports = kernel_entries(path / "ports")
        layer = next(filter(None, (kernel_text(port / "link_layer") for port in ports)), "")
        active = any(kernel_text(port / "state").endswith("ACTIVE") for port in ports)
        rdma.append(Rdma(path.name, _driver(path), layer, active))
    dmi = sys / "class" / "dmi" / "id"
    cloud = next((cloud for name, cloud in _VENDORS.items() if kernel_text(dmi / "sys_vendor").startswith(name)), "")
    containers = (root / ".dockerenv", root / "run" / ".containerenv")
    try:
        shm = os.statvfs(root / "dev" / "shm")
    except OSError:
        shm = None
    return Machine(
        gpus=gpus,
        gpu_reason=reason,
        driver=driver,
        p2p=p2p,
        rdma=tuple(rdma),
        interfaces=tuple(
            Interface(path.name, _driver(path), kernel_text(path / "operstate") == "up")
            for path in kernel_entries(sys / "class" / "net")
            if not interface_inside(path.name)
        ),
        cloud="oci" if "OracleCloud" in kernel_text(dmi / "chassis_asset_tag") else cloud,
        product=kernel_text(dmi / "product_name"),
        container="KUBERNETES_SERVICE_HOST" in environment or any(mark.exists() for mark in containers),
        slurm="SLURM_JOB_ID" in environment,
        shm_bytes=None if shm is None else shm.f_frsize * shm.f_blocks,
    )


def _gpus() -> tuple[tuple[Gpu, ...], str, str, bool | None]:
    nvml, reason = open_nvml()
    if nvml is None:
        return (), reason, "", None
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(Gpu(nvml.nvmlDeviceGetName(handle), _nvlinks(nvml, handle)) for handle in handles)
        p2p = None
        if len(handles) > 1:
            with suppress(nvml.NVMLError):
                states = (nvml.nvmlDeviceGetP2PStatus(a, b, P2P_READ) for a, b in combinations(handles, 2))
                p2p = all(state == nvml.NVML_P2P_STATUS_OK for state in states)
        return gpus, "" if gpus else "NVML lists no GPU", driver, p2p
    except nvml.NVMLError as error:
        return (), f"NVML: {error}", "", None
    finally:
        nvml.nvmlShutdown()


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """Return the number of active links of a GPU; None if it does not respond."""
    with suppress(nvml.NVMLError):
        states = nvlinks(nvml, handle)
        return None if states is None else sum(states)
    return None


def _driver(path: Path) -> str:
    try:
        return (path / "device" / "driver").resolve(strict=True).name
    except OSError:
        return ""
