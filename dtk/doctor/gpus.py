"""GPUs as NVML lists them: in PCI order like nvidia-smi, independent of CUDA_VISIBLE_DEVICES."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import Any

from dtk.doctor.model import Finding, Result, Scope, finding, judged, not_applicable
from dtk.record.nvml import ask

NO_GPU = "no NVIDIA GPU here"
BUSY_PERCENT = 50  # Chosen: a desktop needs less, and a training job more.
PROHIBITED = 2  # Compute mode in which no process may open the device.


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device of this machine."""

    nvml: Any
    index: int
    name: str
    uuid: str
    bus: str
    """PCI address in the kernel's format: 0000:3b:00."""
    handle: Any

    def read(self, call: str, *arguments: Any) -> Any:
        """Return the result of `ask` for this device."""
        return ask(self.nvml, call, self.handle, *arguments)

    def is_busy(self) -> bool:
        """Whether the device is busy: idle devices and their links slow down to save power."""
        rates = self.read("GetUtilizationRates")
        return rates is not None and rates.gpu >= BUSY_PERCENT


def find(scope: Scope) -> tuple[list[Gpu], list[Finding], str]:
    """Return the devices that answer, findings on those that do not, and the reason if NVML is missing."""
    nvml, reason = scope.nvml()
    if nvml is None:
        return [], [], reason
    gpus, findings = [], []
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return [], [finding("gpu_lost", what="NVML cannot count the devices", error=error)], ""
    for i in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            pci = nvml.nvmlDeviceGetPciInfo(handle)
            bus = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"
            gpus.append(Gpu(nvml, i, nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), bus, handle))
        except nvml.NVMLError as error:
            findings.append(finding("gpu_lost", what=f"GPU {i} does not respond", error=error))
    return gpus, findings, "" if count else "the driver lists no device"


Seen = Iterator[Finding | str | None]
"""Observations on one device: findings, lines of details, and None if the device does not report."""


def each_gpu(fine: str) -> Callable[[Callable[[Gpu], Seen]], Callable[[Scope], Result]]:
    """Turn a check of one device into a check of the machine; `fine` is the summary if nothing is found."""

    def check(look: Callable[[Gpu], Seen]) -> Callable[[Scope], Result]:
        @wraps(look)
        def run(scope: Scope) -> Result:
            return each(scope, look, fine)

        return run

    return check


def each(scope: Scope, look: Callable[[Gpu], Seen], fine: str) -> Result:
    """Return one result over all devices; its summary is `fine` if nothing is found."""
    gpus, _, reason = find(scope)
    if not gpus:
        return not_applicable(f"{NO_GPU} ({reason})" if reason else "no GPU responds")
    items: list[Finding | str | None] = []
    for gpu in gpus:
        try:
            items += look(gpu)
        except gpu.nvml.NVMLError as error:
            items.append(finding("gpu_lost", what=f"GPU {gpu.index} stopped responding", error=error))
    if items.count(None) == len(gpus):
        return not_applicable(f"{gpus[0].name} and this driver do not report it")
    findings = [item for item in items if isinstance(item, Finding)]
    return judged(findings, fine, details=[item for item in items if isinstance(item, str)])


def devices(scope: Scope) -> Result:
    """Check that NVML and all devices respond, and that all devices are of one kind."""
    gpus, findings, reason = find(scope)
    nvml, _ = scope.nvml()
    if nvml is None:  # Normal without a GPU, a failure if the kernel exposes a device.
        if "mismatch" in reason.lower():
            return judged([finding("driver_mismatch", reason=reason)])
        if nvidia_devices():
            return judged([finding("no_pynvml" if find_spec("pynvml") is None else "no_nvml", reason=reason)])
        return not_applicable(f"{NO_GPU} ({reason})")
    if not gpus and not findings:
        return not_applicable(reason)
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        most = max(names, key=lambda name: sum(gpu.name == name for gpu in gpus))
        take = ",".join(gpu.uuid for gpu in gpus if gpu.name == most)
        findings.append(finding("gpus_differ", names=", ".join(names), take=take))
    for gpu in gpus:  # Ranks cannot share devices in this mode.
        if gpu.read("GetComputeMode") == PROHIBITED:
            findings.append(finding("compute_prohibited", gpu=gpu.index))
        if (mig := gpu.read("GetMigMode")) is not None and mig[0]:
            findings.append(finding("mig", gpu=gpu.index))
    findings += _hidden(gpus)
    driver = nvml.nvmlSystemGetDriverVersion()
    kind = f"{len(gpus)} x {names[0]}" if len(names) == 1 else ", ".join(gpu.name for gpu in gpus)
    return judged(
        findings,
        f"{kind}, driver {driver}",
        details=[f"GPU {gpu.index}  {gpu.bus}  {gpu.uuid}" for gpu in gpus],
        measures={"gpus": [{"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "pci": gpu.bus} for gpu in gpus]},
        common={"GPUs": kind, "NVIDIA driver": driver},
    )


def nvidia_devices() -> bool:
    """Whether the kernel exposes an NVIDIA device to this system (or container)."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version"))  # noqa: PTH110


def _hidden(gpus: list[Gpu]) -> Iterator[Finding]:
    """Yield findings on CUDA_VISIBLE_DEVICES; CUDA ignores all entries from the first unknown one on."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return
    entries = [entry.strip() for entry in chosen.split(",")]
    # An entry is an index, or a prefix of a UUID.
    visible = [
        int(entry) < len(gpus)
        if entry.isdecimal()
        else entry.startswith("MIG-") or (bool(entry) and any(gpu.uuid.startswith(entry) for gpu in gpus))
        for entry in entries
    ]
    if not chosen.strip() or not visible[0]:
        yield finding("all_hidden", chosen=chosen)
    elif not all(visible):
        at = visible.index(False)
        yield finding("some_hidden", chosen=chosen, bad_entry=entries[at], lost=len(entries) - at)
