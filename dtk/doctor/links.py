"""The wires of each GPU: NVLink and its fabric, PCIe. By NVML alone."""

from typing import Any

from dtk.doctor.gpus import TOPIC, Gpu, each
from dtk.doctor.model import Check, Finding, Remedy, Result, not_applicable
from dtk.doctor.scope import Scope

MAX_LINKS = 36
REPLAY, RECOVERY, CRC_FLIT, CRC_DATA = range(4)
ERRORS = {REPLAY: "replays", RECOVERY: "recoveries", CRC_DATA: "CRC errors"}
"""Counters of nvmlDeviceGetNvLinkErrorCounter; CRC of flits counts retried packets of a healthy link as well."""
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
"""States of the registration with the NVSwitch fabric (nvml.h); 0 = the device has none."""
FABRIC_DONE = 3
MANY_REPLAYS = 100
BUSY_PERCENT = 50


def nvlink(scope: Scope) -> Result:
    """Links that are down, links with errors, the registration with the NVSwitch fabric."""
    lines: list[str] = []
    ups: dict[int, int] = {}

    def look(gpu: Gpu) -> list[Finding] | None:
        states = _states(gpu)
        if not states:
            return None
        up = [link for link, active in states.items() if active]
        down = [link for link, active in states.items() if not active]
        ups[gpu.index] = len(up)
        lines.append(f"GPU {gpu.index}  {len(up)} of {len(states)} links up")
        see = Remedy("see the links; reseat the bridge or ask for service", f"nvidia-smi nvlink -s -i {gpu.index}")
        findings = []
        if up and down:
            listed = ", ".join(map(str, down))
            findings.append(
                Finding("failure", f"GPU {gpu.index}: NVLink {listed} down, {len(up)} of {len(states)} up", see)
            )
        return findings + _errors(gpu, up) + _fabric(gpu)

    result = each(scope, look, "all links are up, without errors", details=lines)
    if not ups or result.status == "failure":
        return result
    if not any(ups.values()):
        if result.status == "ok":
            return not_applicable(
                "no link is up on any GPU: no NVLink bridge or switch is connected", details=tuple(lines)
            )
        return result
    most = max(ups.values())
    fewer = [index for index, count in ups.items() if count < most]
    if fewer:
        text = f"GPU {', '.join(map(str, fewer))}: fewer links up ({min(ups.values())}) than the others ({most})"
        fix = Remedy("see the links", "nvidia-smi nvlink -s")
        return Result("failure", text, tuple(lines), (fix,))
    return result


def _states(gpu: Gpu) -> dict[int, bool]:
    """Link -> whether it is up, of the links that the device has."""
    states = {}
    for link in range(MAX_LINKS):
        active = gpu.read("GetNvLinkState", link)
        if active is None:
            break
        states[link] = bool(active)
    return states


def _errors(gpu: Gpu, links: list[int]) -> list[Finding]:
    """Links whose error counters are not zero."""
    findings = []
    for link in links:
        counts = {name: gpu.read("GetNvLinkErrorCounter", link, counter) for counter, name in ERRORS.items()}
        bad = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        if bad:
            fix = Remedy("watch whether they grow under load", f"nvidia-smi nvlink -e -i {gpu.index}")
            findings.append(Finding("warning", f"GPU {gpu.index}: NVLink {link} has {bad}", fix))
    return findings


def _fabric(gpu: Gpu) -> list[Finding]:
    """On machines with NVSwitch: CUDA starts only when the fabric manager has let the device in."""
    info: Any = gpu.nvml.c_nvmlGpuFabricInfoV_t()
    if gpu.read("GetGpuFabricInfoV", gpu.nvml.byref(info)) is None:
        return []
    state = int(info.state)
    if state == 0 or (state == FABRIC_DONE and int(info.status) == 0):
        return []
    why = f"error {int(info.status)}" if state == FABRIC_DONE else FABRIC.get(state, f"state {state}")
    fix = Remedy("start the fabric manager, in the driver's version", "sudo systemctl restart nvidia-fabricmanager")
    return [Finding("failure", f"GPU {gpu.index}: registration with the NVSwitch fabric: {why}", fix)]


def pcie(scope: Scope) -> Result:
    """Links narrower or (when busy) slower than device and slot allow, and transfers that were repeated."""
    lines: list[str] = []

    def look(gpu: Gpu) -> list[Finding] | None:
        width, most = gpu.read("GetCurrPcieLinkWidth"), gpu.read("GetMaxPcieLinkWidth")
        if width is None or most is None:
            return None
        speed, fastest = gpu.read("GetCurrPcieLinkGeneration"), gpu.read("GetMaxPcieLinkGeneration")
        rates = gpu.read("GetUtilizationRates")
        busy = rates is not None and rates.gpu >= BUSY_PERCENT
        lines.append(f"GPU {gpu.index}  PCIe {speed} of {fastest}, x{width} of x{most}")
        seen = Remedy("reseat the card, try another slot or riser", f"sudo lspci -vv -s {gpu.bus} | grep -i LnkSta")
        findings = []
        if width < most:
            findings.append(Finding("warning", f"GPU {gpu.index}: PCIe x{width} of x{most}", seen))
        if busy and speed and fastest and speed < fastest:  # An idle link slows down to save power.
            text = f"GPU {gpu.index} is busy on PCIe generation {speed} of {fastest}"
            findings.append(Finding("warning", text, seen))
        replays = gpu.read("GetPcieReplayCounter")
        if replays and replays > MANY_REPLAYS:
            findings.append(Finding("warning", f"GPU {gpu.index}: {replays:,} PCIe transfers were repeated", seen))
        return findings

    return each(scope, look, "full width, no repeated transfers", details=lines)


CHECKS = (
    Check("nvlink", TOPIC, "links down, link errors, the NVSwitch fabric", nvlink),
    Check("pcie", TOPIC, "width, generation, repeated transfers", pcie),
)
