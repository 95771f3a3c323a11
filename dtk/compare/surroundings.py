"""Reads telemetry/*.jsonl for disturbances in the measured steps (throttling, other processes) and for energy."""

from collections import Counter
from contextlib import suppress
from statistics import fmean, median
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.node_health import SLOWED
from diagnostics.evidence.limits import Limits, lines_of
from diagnostics.runs.records import number, objects
from dtk.compare import steps
from dtk.compare.model import Disturbance, RunRecord

CAPPED = "software_power_cap"  # Running at the power limit is usual under full load, but explains lower clocks.
SLOWED_SHARE, CAPPED_SHARE = 0.05, 0.5  # Fraction of the samples; chosen: a smaller one changes no median.
OTHERS_PERCENT = 15.0  # Mean CPU use of other processes, in percent, from which they count as a disturbance.
BUSY_PERCENT = 85.0  # CPU utilization of the machine in percent above which processes wait for each other.
STOLEN_PERCENT = 5.0  # CPU that the hypervisor gave to other machines.


def surrounded(run: RunRecord, limits: Limits) -> RunRecord:
    """Return the run with what the samples of all nodes show about its measured steps, of which it has some."""
    begin_s, end_s = steps.timespan_s(run)
    clocks: list[float] = []
    watts: list[float] = []
    disturbances: list[Disturbance] = []
    for path in sorted((run.path / "telemetry").glob("node_*.jsonl"))[: limits.files]:
        samples: list[dict[str, Any]] = []
        if path.is_file() and not path.is_symlink():
            with suppress(OSError, ValueError):  # Keep what was read; the diagnosis reports damaged files.
                for value in objects(lines_of(path, limits)):
                    time_s = number(value.get("time_s")) if value.get("kind") == "sample" else None
                    if time_s is not None and begin_s <= time_s <= end_s:
                        samples.append(value)
        node = "" if path.name == "node_00000.jsonl" else f" of {path.stem.replace('_0000', ' ')}"
        disturbances += _host(samples, node)
        by_device: dict[str, list[dict[str, Any]]] = {}
        for sample in samples:
            of_gpus = sample.get("gpu")
            for gpu in of_gpus if isinstance(of_gpus, list) else ():
                if isinstance(gpu, dict):
                    by_device.setdefault(str(gpu.get("uuid")), []).append({**gpu, "time_s": sample["time_s"]})
        for device in by_device.values():
            disturbances += _throttled(f"GPU {device[0].get('index')}{node}", device)
            clocks += _numbers(device, "sm_clock_mhz")
            watts += [power for power in (_power(device),) if power is not None]
    return replace(
        run,
        energy_j=sum(watts) * steps.step_time_s(run) if watts else None,
        clocks_mhz=median(clocks) if clocks else None,
        disturbances=tuple(disturbances),
    )


def _throttled(name: str, device: list[dict[str, Any]]) -> list[Disturbance]:
    samples = [reasons for sample in device if isinstance(reasons := sample.get("throttle_reasons"), list)]
    if not samples:
        return []
    counts = Counter(str(reason) for reasons in samples for reason in reasons)
    shares = {reason: counts[reason] / len(samples) for reason in (*sorted(SLOWED), CAPPED)}
    slowed = [r for r in sorted(SLOWED) if shares[r] >= SLOWED_SHARE]
    if slowed:
        reasons = ", ".join(f"{reason} in {shares[reason]:.0%} of the samples" for reason in slowed)
        return [Disturbance("a device was throttled", f"{name}: {reasons}")]
    if shares[CAPPED] >= CAPPED_SHARE:
        share = f"{shares[CAPPED]:.0%}"
        return [Disturbance("a device ran at its power limit", f"{name} in {share} of the samples")]
    return []


def _host(samples: list[dict[str, Any]], node: str) -> list[Disturbance]:
    hosts = [host for sample in samples if isinstance(host := sample.get("host"), dict)]
    disturbances = []
    others, busy = _numbers(hosts, "others_cpu_percent"), _numbers(hosts, "cpu_percent")
    if others and fmean(others) >= OTHERS_PERCENT and fmean(busy) >= BUSY_PERCENT:
        disturbances.append(Disturbance("other processes used the CPU", f"{fmean(others):.0f}% of it{node}"))
    stolen = _numbers(hosts, "stolen_cpu_percent")
    if stolen and fmean(stolen) >= STOLEN_PERCENT:
        disturbances.append(Disturbance("the hypervisor gave the CPU to others", f"{fmean(stolen):.0f}% of it{node}"))
    for key, what in (("network_errors", "network errors"), ("network_drops", "dropped packets")):
        counts = _numbers(hosts, key)
        if len(counts) > 1 and counts[-1] > counts[0]:
            disturbances.append(Disturbance(f"the network had {what}", f"{counts[-1] - counts[0]:,.0f}{node}"))
    return disturbances


def _power(device: list[dict[str, Any]]) -> float | None:
    """Return mean watts: from the energy counter if there is one, else from the samples of the power."""
    counted = [(float(s["time_s"]), joules) for s in device if (joules := number(s.get("energy_joules"))) is not None]
    if len(counted) > 1:
        (begin_s, before), (end_s, after) = counted[0], counted[-1]
        if end_s > begin_s and after >= before:
            return (after - before) / (end_s - begin_s)
    watts = _numbers(device, "power_watts")
    return fmean(watts) if watts else None


def _numbers(records: list[dict[str, Any]], key: str) -> list[float]:
    return [value for record in records if (value := number(record.get(key))) is not None]
