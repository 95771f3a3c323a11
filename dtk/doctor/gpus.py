"""GPUs as NVML lists them (in PCI order, independent of CUDA_VISIBLE_DEVICES), and all pairs of them. No torch."""

import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from itertools import combinations
from typing import Any

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import first_of
from dtk.doctor.model import ChildOutput, Finding, Result, Scope, finding, judged, not_applicable, run_child
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


READ, WRITE, NVLINK = 0, 1, 2  # Kinds of nvmlDeviceGetP2PStatus.
OK = 0  # NVML_P2P_STATUS_OK, nvml.h.
STATUS: dict[int, str] = table_beside(__file__)
SLOW_SHARE = 0.5  # Chosen: of the median; equal links differ by some percent, a degraded one by half or more.
LISTED = 28  # Maximum number of pairs listed individually: those of 8 GPUs.


def p2p(scope: Scope) -> Result:
    """Check peer access between every pair of devices."""
    gpus, _, reason = find(scope)
    if len(gpus) < 2:
        return not_applicable(f"{NO_GPU} ({reason})" if reason else "one GPU has no peer")
    pairs: dict[tuple[int, int], tuple[int | None, bool]] = {}
    try:
        for a, b in combinations(gpus, 2):
            # The worse status of reading and writing, and whether NVLink connects the pair.
            both = (a.read("GetP2PStatus", b.handle, kind) for kind in (READ, WRITE))
            worse = max((status for status in both if status is not None), default=None)
            pairs[a.index, b.index] = worse, a.read("GetP2PStatus", b.handle, NVLINK) == OK
    except gpus[0].nvml.NVMLError as error:
        return judged([finding("p2p_no_answer", error=error)])
    if all(read is None for read, _ in pairs.values()):
        return not_applicable("this driver does not report it")
    linked = sum(nvlink for _, nvlink in pairs.values())
    fine = f"{len(pairs)} pairs with peer access" + (f", {linked} by NVLink" if linked else ", by PCIe")
    lines = []
    for (i, j), (read, nvlink) in list(pairs.items())[:LISTED]:
        way = "unknown" if read is None else "NVLink" if nvlink else "PCIe"
        lines.append(f"GPU {i}-{j}  {f'no peer access: {STATUS.get(read, read)}' if read else way}")
    measures = {"pairs": [{"gpus": list(pair), "read": r, "nvlink": n} for pair, (r, n) in pairs.items()]}
    return judged(_judge_pairs(pairs), fine, details=lines, measures=measures)


def _judge_pairs(pairs: dict[tuple[int, int], tuple[int | None, bool]]) -> Iterator[Finding]:
    """Yield findings on pairs without peer access: an error over NVLink, elsewhere slower and possibly a hang."""
    for status in sorted({read for read, _ in pairs.values() if read}):
        without = [f"{a}-{b}" for (a, b), (read, _) in pairs.items() if read == status]
        linked = any(nvlink for read, nvlink in pairs.values() if read == status)
        names = first_of(without)
        text = f"no peer access for {len(without)} of {len(pairs)} pairs ({names}): {STATUS.get(status, status)}"
        yield finding("p2p_broken" if linked else "p2p_absent", text=text)
    if len({nvlink for _, nvlink in pairs.values()}) > 1:
        apart = [f"{a}-{b}" for (a, b), (_, nvlink) in pairs.items() if not nvlink]
        yield finding("pairs_without_nvlink", pairs=first_of(apart))


def copies(scope: Scope) -> Result:
    """Copy data between all pairs of devices, and check that each copy completes, is correct and is not slow."""
    torch = scope.torch()
    count = len(torch.facts.get("devices", []))
    if count < 2:
        reason = torch.reason or torch.facts.get("cuda_error")
        return not_applicable(reason or ("one GPU has no peer" if count else "torch sees no CUDA device"))
    devices = [f"cuda:{i}" for i in range(count)]
    return judge_copies(run_child(["-m", "dtk.doctor.copying", *devices], scope.timeout_s))


def judge_copies(output: ChildOutput) -> Result:
    """Judge the results of the copies."""
    done = [record for record in output.records if "gb_per_s" in record]
    findings = []
    for record in done:
        if record.get("wrong"):
            wrong = json.dumps(record["wrong"])
            findings.append(finding("copy_wrong", source=record["from"], target=record["to"], wrong=wrong))
    if output.problem:
        begun = [record for record in output.records if "begin" in record]
        where = f" in the copy from {begun[-1]['begin']} to {begun[-1]['to']}" if begun else ""
        findings.append(finding("copy_failed", problem=output.problem, where=where))
    speeds = {(record["from"], record["to"]): record["gb_per_s"] for record in done}
    middle = statistics.median(speeds.values()) if speeds else 0.0
    for (source, target), speed in speeds.items():
        if speed < SLOW_SHARE * middle:
            findings.append(finding("copy_slow", source=source, target=target, speed=speed, middle=middle))
    fine = f"{len(speeds)} copies are right, {middle:.1f} GB/s (median)"
    lines = [f"{source} to {target}  {speed:.1f} GB/s" for (source, target), speed in speeds.items()][: 2 * LISTED]
    return judged(findings, fine, details=lines, measures={"copies": done})
