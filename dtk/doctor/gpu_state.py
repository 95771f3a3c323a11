"""The state of each GPU by NVML: clocks, power limit, throttling, ECC, remapped rows, other processes."""

import os
from pathlib import Path

from diagnostics.contract.files import kernel_text, table_beside
from dtk.doctor.gpus import Gpu, Seen, each, each_gpu
from dtk.doctor.model import Remedy, Result, finding
from dtk.doctor.scope import Scope
from dtk.record.nvml import event_reasons

CORRECTED, UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t, nvml.h.
VOLATILE, AGGREGATE = 0, 1  # Arguments of nvmlDeviceGetTotalEccErrors: since the last reset, and over the lifetime.
MANY_CORRECTED = 1000  # Chosen: since the last reset; single errors are normal, a failing cell repeats them.
SM_CLOCK = 1  # NVML_CLOCK_SM, nvml.h.
SLOW_CLOCK = 0.7  # Chosen: thermal and power management cost some percent of the highest SM clock, a lock more.
POWER_SHARE = 0.9  # Chosen: of the default limit; above it speed hardly suffers, below it was lowered on purpose.
HELD_SHARE = 0.1  # Chosen: of the memory; a driver needs less without a process, a leftover process needs more.
THROTTLES: dict[str, str] = table_beside(__file__)


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
