"""How each GPU feels: clocks and power limit, throttling, ECC, remapped rows, who else uses it. By NVML alone."""

import os
from pathlib import Path

from dtk.doctor.gpus import TOPIC, Gpu, each
from dtk.doctor.model import Check, Finding, Remedy, Result
from dtk.doctor.scope import Scope
from dtk.record.nvml import EVENT_REASONS

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
"""Arguments of nvmlDeviceGetTotalEccErrors: since the last reset, and since it was made."""
MANY_CORRECTED = 1000
"""Corrected errors since the last reset above which a cell is likely to be failing."""
SM_CLOCK = 1
BUSY_PERCENT = 50
SLOW_CLOCK = 0.7
"""Part of the highest SM clock below which a busy device is slow."""
POWER_SHARE = 0.9
"""Part of the default power limit below which somebody has lowered it on purpose."""
HELD_SHARE = 0.1
"""Part of the memory that is in use without a visible process: more than a driver needs."""
THROTTLES = {
    "hardware_slowdown": "failure",
    "hardware_thermal": "failure",
    "hardware_power_brake": "failure",
    "software_thermal": "warning",
    "sync_boost": "warning",
}
"""Reason -> how bad it is. The power cap is normal under load; idle and the display's clocks are no throttling."""


def clocks(scope: Scope) -> Result:
    """Clocks of busy devices against their highest, the same highest clock for all, and the power limit."""
    lines: list[str] = []
    highest: dict[str, set[int]] = {}

    def look(gpu: Gpu) -> list[Finding] | None:
        now, most = gpu.read("GetClockInfo", SM_CLOCK), gpu.read("GetMaxClockInfo", SM_CLOCK)
        if now is None and most is None:
            return None
        highest.setdefault(gpu.name, set()).add(most or 0)
        rates = gpu.read("GetUtilizationRates")
        busy = rates is not None and rates.gpu >= BUSY_PERCENT
        lines.append(f"GPU {gpu.index}  SM {now} of {most} MHz, {'busy' if busy else 'idle'}")
        findings = _power(gpu)
        if busy and now and most and now < SLOW_CLOCK * most:
            text = f"GPU {gpu.index} is busy at {now} MHz of {most} MHz"
            findings.append(
                Finding("warning", text, Remedy("undo locked clocks", f"sudo nvidia-smi -i {gpu.index} -rgc"))
            )
        if (gpu.read("GetCurrentClocksEventReasons") or 0) & 0x2:
            text = f"GPU {gpu.index}: application clocks are set below the highest"
            findings.append(Finding("warning", text, Remedy("undo them", f"sudo nvidia-smi -i {gpu.index} -rac")))
        return findings

    result = each(scope, look, "no clock is held down, power limits are the default ones", details=lines)
    uneven = [name for name, clocks in highest.items() if len(clocks) > 1]
    if uneven and result.status == "ok":
        clocks = ", ".join(map(str, sorted(highest[uneven[0]])))
        fix = Remedy("undo locked clocks", "sudo nvidia-smi -rgc")
        return Result("warning", f"GPUs of one kind have different highest clocks: {clocks} MHz", tuple(lines), (fix,))
    return result


def _power(gpu: Gpu) -> list[Finding]:
    """Return a finding if the power limit was lowered."""
    limit, default = gpu.read("GetEnforcedPowerLimit"), gpu.read("GetPowerManagementDefaultLimit")
    if not limit or not default or limit >= POWER_SHARE * default:
        return []
    watts, normal = limit / 1e3, default / 1e3
    fix = Remedy("put it back", f"sudo nvidia-smi -i {gpu.index} -pl {normal:.0f}")
    return [Finding("warning", f"GPU {gpu.index}: power limit {watts:.0f} W of {normal:.0f} W", fix)]


def throttling(scope: Scope) -> Result:
    """Whether something slows the device down at this moment, and its temperature."""
    lines: list[str] = []

    def look(gpu: Gpu) -> list[Finding] | None:
        bits = gpu.read("GetCurrentClocksEventReasons")
        if bits is None:
            bits = gpu.read("GetCurrentClocksThrottleReasons")  # The name in drivers before 535.
        if bits is None:
            return None
        reasons = [name for bit, name in EVENT_REASONS.items() if bits & bit]
        celsius = gpu.read("GetTemperature", 0)
        heat = "" if celsius is None else f"{celsius} C"
        lines.append(f"GPU {gpu.index}  {', '.join(part for part in (heat, *reasons) if part) or 'nothing'}")
        fix = Remedy("see reasons and temperatures", f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.index}")
        bad = [name for name in reasons if name in THROTTLES]
        status = "failure" if any(THROTTLES[name] == "failure" for name in bad) else "warning"
        told = f"GPU {gpu.index} is throttled: {', '.join(bad)}" + (f" at {heat}" if heat else "")
        return [Finding("failure" if status == "failure" else "warning", told, fix)] if bad else []

    return each(scope, look, "no device is throttled now", details=lines)


def ecc(scope: Scope) -> Result:
    """Memory errors that were not corrected, many that were, and ECC switched off."""
    lines: list[str] = []

    def look(gpu: Gpu) -> list[Finding] | None:
        mode = gpu.read("GetEccMode")
        if mode is None:
            return None
        if not mode[0]:
            fix = Remedy("switch it on (from the next reboot)", f"sudo nvidia-smi -i {gpu.index} -e 1")
            return [Finding("warning", f"GPU {gpu.index}: ECC is off, memory errors go unnoticed", fix)]
        now, ever = (gpu.read("GetTotalEccErrors", UNCORRECTED, span) or 0 for span in (VOLATILE, AGGREGATE))
        corrected = gpu.read("GetTotalEccErrors", CORRECTED, VOLATILE) or 0
        lines.append(f"GPU {gpu.index}  uncorrected {now} since reset, {ever} ever; corrected {corrected} since reset")
        reset = Remedy("stop its jobs and reset it", f"sudo nvidia-smi --gpu-reset -i {gpu.index}")
        if now:
            return [Finding("failure", f"GPU {gpu.index}: {now} uncorrected ECC errors since its last reset", reset)]
        look_at = Remedy("watch whether they grow; ask for a replacement if so", f"nvidia-smi -q -d ECC -i {gpu.index}")
        if corrected > MANY_CORRECTED:
            return [
                Finding("warning", f"GPU {gpu.index}: {corrected:,} corrected ECC errors since its last reset", look_at)
            ]
        if ever:
            return [Finding("warning", f"GPU {gpu.index}: {ever} uncorrected ECC errors in its life", look_at)]
        return []

    return each(scope, look, "no uncorrected memory error", details=lines)


def remapped_rows(scope: Scope) -> Result:
    """Rows of memory taken out of use: waiting for a reset, or no spare row left."""
    lines: list[str] = []

    def look(gpu: Gpu) -> list[Finding] | None:
        reset = Remedy("stop its jobs and reset it", f"sudo nvidia-smi --gpu-reset -i {gpu.index}")
        rows = gpu.read("GetRemappedRows")
        if rows is None:  # Before Ampere pages were retired.
            pending = gpu.read("GetRetiredPagesPendingStatus")
            if pending is None:
                return None
            lines.append(f"GPU {gpu.index}  pages to retire: {'yes' if pending else 'none'}")
            return (
                [Finding("warning", f"GPU {gpu.index}: a page waits for a reset to be retired", reset)]
                if pending
                else []
            )
        corrected, uncorrected, pending, failed = rows
        lines.append(f"GPU {gpu.index}  remapped after corrected errors {corrected}, uncorrected {uncorrected}")
        if failed:
            fix = Remedy(
                "take it out of service and ask for a replacement", f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}"
            )
            return [Finding("failure", f"GPU {gpu.index}: a row could not be remapped, no spare is left", fix)]
        if pending:
            return [Finding("failure", f"GPU {gpu.index}: a faulty row waits for a reset to be remapped", reset)]
        return []

    return each(scope, look, "no row waits or failed to be remapped", details=lines)


def gpu_processes(scope: Scope) -> Result:
    """Check for other processes on the devices, and for memory that no visible process holds."""
    lines: list[str] = []

    def look(gpu: Gpu) -> list[Finding] | None:
        running = gpu.read("GetComputeRunningProcesses")
        memory = gpu.read("GetMemoryInfo")
        if running is None and memory is None:
            return None
        findings = []
        for process in running or []:
            if process.pid in (os.getpid(), os.getppid()):
                continue
            used = f", {process.usedGpuMemory / 2**20:,.0f} MiB" if process.usedGpuMemory else ""
            lines.append(f"GPU {gpu.index}  pid {process.pid} {_name(process.pid)}{used}")
            fix = Remedy("see whose it is; end it if it is yours", f"ps -o pid,user,etime,args -p {process.pid}")
            text = f"GPU {gpu.index} is used by pid {process.pid} {_name(process.pid)}{used}"
            findings.append(Finding("warning", text, fix))
        if memory is not None and not running and memory.used > HELD_SHARE * memory.total:
            text = f"GPU {gpu.index}: {memory.used / 2**20:,.0f} MiB are held by no process that is visible here"
            fix = Remedy("another container, or what a killed job left", f"sudo fuser -v /dev/nvidia{gpu.index}")
            findings.append(Finding("warning", text, fix))
        return findings

    return each(scope, look, "nobody else uses the devices", details=lines)


def _name(pid: int) -> str:
    """Name of a process; of another container's the number alone is known."""
    try:
        return f"({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8', errors='replace').strip()})"
    except OSError:
        return "(not visible here)"


CHECKS = (
    Check("clocks", TOPIC, "clocks of busy devices, power limits", clocks),
    Check("throttling", TOPIC, "thermal, power and hardware slowdown at this moment", throttling),
    Check("ecc", TOPIC, "memory errors", ecc),
    Check("remapped_rows", TOPIC, "rows of memory waiting for a reset, or without a spare", remapped_rows),
    Check("gpu_processes", TOPIC, "processes of others, memory that nobody visible holds", gpu_processes),
)
