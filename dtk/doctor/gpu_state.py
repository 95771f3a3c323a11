"""The state of each GPU by NVML: clocks, power, throttling, ECC, remapped rows, other processes, NVLink, PCIe."""

import os
from pathlib import Path
from typing import Any

from diagnostics.contract.files import kernel_text, table_beside
from dtk.doctor.gpus import Gpu, Seen, each, each_gpu
from dtk.doctor.model import Remedy, Result, Scope, finding, not_applicable
from dtk.record.nvml import event_reasons, nvlinks

CORRECTED, UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t, nvml.h.
VOLATILE, AGGREGATE = 0, 1  # Arguments of nvmlDeviceGetTotalEccErrors: since the last reset, and over the lifetime.
MANY_CORRECTED = 1000  # Chosen: since the last reset; single errors are normal, a failing cell repeats them.
SM_CLOCK = 1  # NVML_CLOCK_SM, nvml.h.
SLOW_CLOCK = 0.7  # Chosen: thermal and power management cost some percent of the highest SM clock, a lock more.
POWER_SHARE = 0.9  # Chosen: of the default limit; above it speed hardly suffers, below it was lowered on purpose.
HELD_SHARE = 0.1  # Chosen: of the memory; a driver needs less without a process, a leftover process needs more.
THROTTLES: dict[str, str] = table_beside(__file__)
REPLAY, RECOVERY, CRC_FLIT, CRC_DATA = range(4)  # nvmlNvLinkErrorCounter_t, nvml.h.
ERRORS = {REPLAY: "replays", RECOVERY: "recoveries", CRC_DATA: "CRC errors"}
"""Counters of nvmlDeviceGetNvLinkErrorCounter; CRC of flits counts retried packets of a healthy link as well."""
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
"""States of the registration with the NVSwitch fabric (nvml.h); 0 = the device has no fabric."""
FABRIC_DONE = 3  # NVML_GPU_FABRIC_STATE_COMPLETED, nvml.h.
MANY_REPLAYS = 100  # Chosen: a few errors occur on healthy links.


def clocks(scope: Scope) -> Result:
    """Check the clocks of busy devices against their maximum, equal maximum clocks, and the power limit."""
    highest: dict[str, set[int]] = {}

    def look(gpu: Gpu) -> Seen:
        now, most = gpu.read("GetClockInfo", SM_CLOCK), gpu.read("GetMaxClockInfo", SM_CLOCK)
        if now is None and most is None:
            yield None
            return
        highest.setdefault(gpu.name, set()).add(most or 0)
        busy = gpu.is_busy()
        yield f"GPU {gpu.index}  SM {now} of {most} MHz, {'busy' if busy else 'idle'}"
        limit, default = gpu.read("GetEnforcedPowerLimit"), gpu.read("GetPowerManagementDefaultLimit")
        if limit and default and limit < POWER_SHARE * default:  # In milliwatts.
            yield finding("power_limit", gpu=gpu.index, limit=limit / 1e3, default=default / 1e3)
        if busy and now and most and now < SLOW_CLOCK * most:
            yield finding("locked_clocks", gpu=gpu.index, now=now, most=most)
        if "application_clocks" in event_reasons(gpu.read("GetCurrentClocksEventReasons") or 0):
            yield finding("application_clocks", gpu=gpu.index)

    result = each(scope, look, "no clock is limited, power limits are the default ones")
    uneven = [name for name, clocks in highest.items() if len(clocks) > 1]
    if uneven and result.status == "ok":
        clocks = ", ".join(map(str, sorted(highest[uneven[0]])))
        text = f"GPUs of one kind have different highest clocks: {clocks} MHz"
        return Result("warning", text, result.details, (Remedy("reset the locked clocks", "sudo nvidia-smi -rgc"),))
    return result


@each_gpu("no device is throttled now")
def throttling(gpu: Gpu) -> Seen:
    """Check whether the device is throttled at this moment, and its temperature."""
    bits = gpu.read("GetCurrentClocksEventReasons")
    if bits is None:
        bits = gpu.read("GetCurrentClocksThrottleReasons")  # Name in drivers before 535.
    if bits is None:
        yield None
        return
    reasons = event_reasons(bits)
    celsius = gpu.read("GetTemperature", 0)
    heat = "" if celsius is None else f"{celsius} C"
    yield f"GPU {gpu.index}  {', '.join(part for part in (heat, *reasons) if part) or 'nothing'}"
    if slowing := [name for name in reasons if name in THROTTLES]:
        bad = any(THROTTLES[name] == "failure" for name in slowing)
        at = f" at {heat}" if heat else ""
        yield finding("throttled", bad=bad, gpu=gpu.index, reasons=", ".join(slowing), heat=at)


@each_gpu("no uncorrected memory error")
def ecc(gpu: Gpu) -> Seen:
    """Check for uncorrected memory errors, many corrected ones, and disabled ECC."""
    mode = gpu.read("GetEccMode")
    if mode is None:
        yield None
        return
    if not mode[0]:
        yield finding("ecc_off", gpu=gpu.index)
        return
    kinds = ((UNCORRECTED, VOLATILE), (UNCORRECTED, AGGREGATE), (CORRECTED, VOLATILE))
    now, ever, corrected = (gpu.read("GetTotalEccErrors", *kind) or 0 for kind in kinds)
    yield f"GPU {gpu.index}  uncorrected {now} since reset, {ever} ever; corrected {corrected} since reset"
    if now:
        yield finding("ecc_uncorrected", gpu=gpu.index, count=now)
    elif corrected > MANY_CORRECTED:
        yield finding("ecc_corrected", gpu=gpu.index, count=corrected)
    elif ever:
        yield finding("ecc_ever", gpu=gpu.index, count=ever)


@each_gpu("no row waits or failed to be remapped")
def remapped_rows(gpu: Gpu) -> Seen:
    """Check for remapped memory rows pending a reset, and for exhausted spare rows."""
    rows = gpu.read("GetRemappedRows")
    if rows is None:  # Before Ampere, pages were retired.
        pending = gpu.read("GetRetiredPagesPendingStatus")
        yield None if pending is None else f"GPU {gpu.index}  pages to retire: {'yes' if pending else 'none'}"
        if pending:
            yield finding("page_waits", gpu=gpu.index)
        return
    corrected, uncorrected, pending, failed = rows
    yield f"GPU {gpu.index}  remapped after corrected errors {corrected}, uncorrected {uncorrected}"
    if failed:
        yield finding("row_failed", gpu=gpu.index)
    elif pending:
        yield finding("row_waits", gpu=gpu.index)


@each_gpu("no other process uses the devices")
def gpu_processes(gpu: Gpu) -> Seen:
    """Check for other processes on the devices, and for memory that no visible process holds."""
    running = gpu.read("GetComputeRunningProcesses")
    memory = gpu.read("GetMemoryInfo")
    if running is None and memory is None:
        yield None
    for process in running or []:
        if process.pid in (os.getpid(), os.getppid()):
            continue
        # Only the pid of a process in another container is known.
        name = kernel_text(Path(f"/proc/{process.pid}/comm")) or "not visible here"
        used = f", {process.usedGpuMemory / 2**20:,.0f} MiB" if process.usedGpuMemory else ""
        yield f"GPU {gpu.index}  pid {process.pid} ({name}){used}"
        yield finding("used_by_another", gpu=gpu.index, pid=process.pid, name=name, used=used)
    if memory is not None and not running and memory.used > HELD_SHARE * memory.total:
        yield finding("memory_held", gpu=gpu.index, mib=memory.used / 2**20)


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
