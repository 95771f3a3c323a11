"""The links of each GPU by NVML: NVLink and its fabric, PCIe."""

from typing import Any

from dtk.doctor.gpus import Gpu, Seen, each, each_gpu
from dtk.doctor.model import Remedy, Result, finding, not_applicable
from dtk.doctor.scope import Scope
from dtk.record.nvml import nvlinks

REPLAY, RECOVERY, CRC_FLIT, CRC_DATA = range(4)  # nvmlNvLinkErrorCounter_t, nvml.h.
ERRORS = {REPLAY: "replays", RECOVERY: "recoveries", CRC_DATA: "CRC errors"}
"""Counters of nvmlDeviceGetNvLinkErrorCounter; CRC of flits counts retried packets of a healthy link as well."""
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
"""States of the registration with the NVSwitch fabric (nvml.h); 0 = the device has no fabric."""
FABRIC_DONE = 3  # NVML_GPU_FABRIC_STATE_COMPLETED, nvml.h.
MANY_REPLAYS = 100  # Chosen: a few errors occur on healthy links.


def nvlink(scope: Scope) -> Result:
    """Check for links that are down, links with errors, and the registration with the NVSwitch fabric."""
    ups: dict[int, int] = {}

    def look(gpu: Gpu) -> Seen:
        if not (states := nvlinks(gpu.nvml, gpu.handle)):
            yield None
            return
        up = [link for link, active in enumerate(states) if active]
        down = [link for link, active in enumerate(states) if not active]
        ups[gpu.index] = len(up)
        yield f"GPU {gpu.index}  {len(up)} of {len(states)} links up"
        if up and down:
            lost = ", ".join(map(str, down))
            yield finding("nvlink_down", gpu=gpu.index, down=lost, up=len(up), links=len(states))
        for link in up:
            counts = {name: gpu.read("GetNvLinkErrorCounter", link, counter) for counter, name in ERRORS.items()}
            if bad := ", ".join(f"{count} {name}" for name, count in counts.items() if count):
                yield finding("nvlink_errors", gpu=gpu.index, link=link, counts=bad)
        yield from _fabric(gpu)

    result = each(scope, look, "all links are up, without errors")
    if not ups or result.status == "failure":
        return result
    if not any(ups.values()):
        reason = "no link is up on any GPU: no NVLink bridge or switch is connected"
        return not_applicable(reason, details=result.details) if result.status == "ok" else result
    most = max(ups.values())
    fewer = [index for index, count in ups.items() if count < most]
    if fewer:
        text = f"GPU {', '.join(map(str, fewer))}: fewer links up ({min(ups.values())}) than the others ({most})"
        return Result("failure", text, result.details, (Remedy("see the links", "nvidia-smi nvlink -s"),))
    return result


def _fabric(gpu: Gpu) -> Seen:
    """Check the NVSwitch fabric: CUDA starts only after the fabric manager has registered the device."""
    info: Any = gpu.nvml.c_nvmlGpuFabricInfoV_t()
    if gpu.read("GetGpuFabricInfoV", gpu.nvml.byref(info)) is None:
        return
    state = int(info.state)
    if state == 0 or (state == FABRIC_DONE and int(info.status) == 0):
        return
    why = f"error {int(info.status)}" if state == FABRIC_DONE else FABRIC.get(state, f"state {state}")
    yield finding("fabric", gpu=gpu.index, why=why)


@each_gpu("full width, no repeated transfers")
def pcie(gpu: Gpu) -> Seen:
    """Check for links narrower or (if busy) slower than device and slot allow, and for repeated transfers."""
    width, most = gpu.read("GetCurrPcieLinkWidth"), gpu.read("GetMaxPcieLinkWidth")
    if width is None or most is None:
        yield None
        return
    speed, fastest = gpu.read("GetCurrPcieLinkGeneration"), gpu.read("GetMaxPcieLinkGeneration")
    yield f"GPU {gpu.index}  PCIe {speed} of {fastest}, x{width} of x{most}"
    if width < most:
        yield finding("pcie_narrow", gpu=gpu.index, bus=gpu.bus, width=width, most=most)
    if speed and fastest and speed < fastest and gpu.is_busy():
        yield finding("pcie_slow", gpu=gpu.index, bus=gpu.bus, speed=speed, fastest=fastest)
    replays = gpu.read("GetPcieReplayCounter")
    if replays and replays > MANY_REPLAYS:
        yield finding("pcie_replays", gpu=gpu.index, bus=gpu.bus, replays=replays)
