"""The GPUs as NVML sees them: in PCI order, whatever CUDA_VISIBLE_DEVICES says, as nvidia-smi numbers them."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import Any

from dtk.doctor.model import Check, Finding, Result, failure, judged, not_applicable, warning
from dtk.doctor.scope import Scope

TOPIC = "gpus"
NO_GPU = "no NVIDIA GPU here"
BUSY_PERCENT = 50  # Chosen: a desktop needs less, a training more.
PROHIBITED = 2  # Compute mode in which no process may open the device.


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device of this machine."""

    nvml: Any
    index: int
    name: str
    uuid: str
    bus: str
    """PCI address as the kernel writes it: 0000:3b:00."""
    handle: Any

    def read(self, call: str, *arguments: Any) -> Any:
        """Return the result of `nvmlDevice<call>`; None if the device or the driver does not support it.

        Raises:
            pynvml.NVMLError: any other trouble, a lost device for example.
        """
        try:
            return getattr(self.nvml, f"nvmlDevice{call}")(self.handle, *arguments)
        except (
            self.nvml.NVMLError_NotSupported,
            self.nvml.NVMLError_FunctionNotFound,
            self.nvml.NVMLError_InvalidArgument,
            self.nvml.NVMLError_NoPermission,
            AttributeError,
        ):
            return None

    def is_busy(self) -> bool:
        """Whether something computes on it now; an idle device and its link slow down to save power."""
        rates = self.read("GetUtilizationRates")
        return rates is not None and rates.gpu >= BUSY_PERCENT


def find(scope: Scope) -> tuple[list[Gpu], list[Finding], str]:
    """Return the devices that answer, findings on those that do not, and the reason if there is no NVML."""
    nvml, reason = scope.nvml()
    if nvml is None:
        return [], [], reason
    gpus, findings = [], []
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return [], [_lost("NVML does not count the devices", error)], ""
    for i in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            pci = nvml.nvmlDeviceGetPciInfo(handle)
            bus = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"
            gpus.append(Gpu(nvml, i, nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), bus, handle))
        except nvml.NVMLError as error:
            findings.append(_lost(f"GPU {i} does not answer", error))
    return gpus, findings, "" if count else "the driver lists no device"


def _lost(what: str, error: Any) -> Finding:
    return failure(f"{what}: {error}", "it fell off the bus or hangs: reboot the node", "sudo reboot")


Seen = Iterator[Finding | str | None]
"""What a check sees on one device: findings, lines of details, and None if the device does not tell."""


def each_gpu(fine: str) -> Callable[[Callable[[Gpu], Seen]], Callable[[Scope], Result]]:
    """Make a check of a machine from a check of one device; `fine` is the summary when all is well."""

    def check(look: Callable[[Gpu], Seen]) -> Callable[[Scope], Result]:
        @wraps(look)
        def run(scope: Scope) -> Result:
            return each(scope, look, fine)

        return run

    return check


def each(scope: Scope, look: Callable[[Gpu], Seen], fine: str) -> Result:
    """One result over all devices.

    Args:
        scope: this machine.
        look: what is seen on a device.
        fine: summary when all is well.
    """
    gpus, _, reason = find(scope)
    if not gpus:
        return not_applicable(f"{NO_GPU} ({reason})" if reason else "no GPU answers")
    seen: list[Finding | str | None] = []
    for gpu in gpus:
        try:
            seen += look(gpu)
        except gpu.nvml.NVMLError as error:
            seen.append(_lost(f"GPU {gpu.index} stopped answering", error))
    if seen.count(None) == len(gpus):
        return not_applicable(f"{gpus[0].name} and this driver do not tell")
    findings = [item for item in seen if isinstance(item, Finding)]
    return judged(findings, fine, details=[item for item in seen if isinstance(item, str)])


def present(scope: Scope) -> Result:
    """NVML answers, every device answers, and they are of one kind."""
    gpus, findings, reason = find(scope)
    nvml, _ = scope.nvml()
    if nvml is None:
        return _without_nvml(reason)
    if not gpus and not findings:
        return not_applicable(reason)
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        text = f"GPUs of different kinds: {', '.join(names)}; the slowest sets the pace"
        most = max(names, key=lambda name: sum(gpu.name == name for gpu in gpus))
        take = ",".join(gpu.uuid for gpu in gpus if gpu.name == most)
        findings.append(warning(text, "take devices of one kind", f"export CUDA_VISIBLE_DEVICES={take}"))
    for gpu in gpus:  # In a mode in which ranks cannot use them together.
        if gpu.read("GetComputeMode") == PROHIBITED:
            text = f"GPU {gpu.index} is in compute mode Prohibited"
            findings.append(failure(text, "allow processes on it", f"sudo nvidia-smi -i {gpu.index} -c DEFAULT"))
        if (mig := gpu.read("GetMigMode")) is not None and mig[0]:
            text = f"GPU {gpu.index} is split by MIG: a process uses one instance, and NCCL joins none of one GPU"
            leave = f"sudo nvidia-smi -i {gpu.index} -mig 0"
            findings.append(warning(text, "leave MIG to train on the whole device", leave))
    findings += _hidden(gpus)
    driver = str(nvml.nvmlSystemGetDriverVersion())
    kind = f"{len(gpus)} x {names[0]}" if len(names) == 1 else ", ".join(gpu.name for gpu in gpus)
    return judged(
        findings,
        f"{kind}, driver {driver}",
        details=[f"GPU {gpu.index}  {gpu.bus}  {gpu.uuid}" for gpu in gpus],
        measures={"gpus": [{"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "pci": gpu.bus} for gpu in gpus]},
        common={"GPUs": kind, "NVIDIA driver": driver},
    )


def _without_nvml(reason: str) -> Result:
    """No NVML is normal without a GPU, and a fault where the kernel has a device."""
    if "mismatch" in reason.lower():
        what = "the driver was updated under a running kernel module: reboot the node"
        return judged([failure(reason, what, "sudo reboot")])
    if nvidia_devices():
        if find_spec("pynvml") is None:
            text = f"{reason}, and an NVIDIA device is here"
            return judged([warning(text, "install it", "pip install nvidia-ml-py")])
        what = "see what the driver says; in a container: docker run --gpus all"
        return judged([failure(f"an NVIDIA device is here and {reason}", what, "nvidia-smi")])
    return not_applicable(f"{NO_GPU} ({reason})")


def nvidia_devices() -> bool:
    """Whether the kernel gave this system (or container) an NVIDIA device."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version"))  # noqa: PTH110


def _hidden(gpus: list[Gpu]) -> Iterator[Finding]:
    """Return findings on CUDA_VISIBLE_DEVICES; CUDA ignores every entry from the first unknown one on."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return
    use_all = ("use all of them", "unset CUDA_VISIBLE_DEVICES")
    entries = [entry.strip() for entry in chosen.split(",")]
    # An entry is a number, or the beginning of a UUID.
    visible = [
        int(entry) < len(gpus)
        if entry.isdecimal()
        else entry.startswith("MIG-") or (bool(entry) and any(gpu.uuid.startswith(entry) for gpu in gpus))
        for entry in entries
    ]
    if not chosen.strip() or not visible[0]:
        yield failure(f'CUDA_VISIBLE_DEVICES="{chosen}" hides every GPU', *use_all)
    elif not all(visible):
        bad, lost = entries[visible.index(False)], len(entries) - visible.index(False)
        text = f"CUDA_VISIBLE_DEVICES={chosen}: there is no device {bad}, so CUDA ignores the last {lost} entries"
        yield failure(text, *use_all)


CHECKS = (Check("devices", TOPIC, "every GPU answers, is of one kind, visible and usable", present),)
