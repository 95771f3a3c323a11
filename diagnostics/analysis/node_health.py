"""The health of each node's devices and host over the run, by telemetry or `nvidia-smi -q`. Names no cause."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.telemetry import TelemetryFile
from diagnostics.evidence.readers.timeline import GpuSample, NodeSample

SLOWED = frozenset({"hardware_slowdown", "software_thermal", "hardware_thermal", "hardware_power_brake"})
"""Reasons for lower clocks that say that something is wrong (nvml.h, nvmlClocksEventReasons). At `software_power_cap` a
device is usually under full load."""
BUSY_PERCENT = 50.0  # Utilization from which on a device works: an idle one lowers its clocks and its link by itself.
MOST_SAMPLES = 1000


class DeviceHealth(Struct, frozen=True):
    """One device. Figures are of the samples in which it worked; None = not measured."""

    name: str
    """`GPU 3`, or its address on the bus."""
    rank: int | None
    file: str
    samples: int
    """In which it worked."""
    slowed: tuple[tuple[str, float], ...] = ()
    """Reason -> share of these samples, the largest first."""
    clock_mhz: float | None = None
    width: tuple[int, int] = (0, 0)
    """Lanes of its PCIe link, and those possible between this device and this system; (0, 0) = not measured."""
    generation: tuple[int, int] = (0, 0)
    """Of its PCIe link, in the same way."""
    is_one_look: bool = False
    """Of `nvidia-smi -q`, where telemetry looks every second."""


class NodeHealth(Struct, frozen=True):
    """One node."""

    file: str
    ranks: tuple[int, ...]
    seconds: float
    """That the samples cover."""
    devices: tuple[DeviceHealth, ...]
    cores: int | None = None
    usable_cores: int | None = None
    """That its ranks may run on."""
    quota_cores: float | None = None
    """Of the cgroup; None = no limit."""
    periods: int = 0
    """Of the scheduler that the cgroup had work in while it was watched."""
    throttled_periods: int = 0
    """Of these, in which its quota was used up."""
    stolen_percent: float | None = None
    """CPU that the hypervisor gave to other machines, on average."""
    core_waits_s: tuple[tuple[int, float], ...] = ()
    """Rank -> seconds in which its main thread was ready to run and waited for a core."""
    disk_waits_s: tuple[tuple[int, float], ...] = ()
    """Rank -> seconds for which every sample up to the last one found its main thread in the kernel's state D."""


def node_health(evidence: Evidence) -> tuple[NodeHealth, ...]:
    """Return the nodes of which there is telemetry, then the devices that `nvidia-smi -q` tells of."""
    nodes = []
    for handle in evidence.handles(TelemetryFile):
        try:
            timeline = handle.load(0, MOST_SAMPLES)
        except (OSError, ValueError):
            continue  # The causes of memory tell of it.
        if timeline.samples:
            nodes.append(_node(handle.file, timeline.cores, timeline.samples))
    states = [fact for fact in evidence.facts if fact.kind == "gpu_state"]
    if states:
        devices = tuple(_device(str(f.fields["device"]), None, f.file, [f.fields["sample"]], True) for f in states)
        nodes.append(NodeHealth(states[0].file, (), 0.0, devices))
    return tuple(nodes)


def _node(file: str, cores: float | None, samples: Sequence[NodeSample]) -> NodeHealth:
    first, last = samples[0].host, samples[-1].host
    ranks = tuple(sorted({rank for sample in samples for rank in sample.host.rank_rss_bytes}))
    rows = [sample.gpu or [] for sample in samples]
    count = max(map(len, rows))
    # A node has a device for each rank, in the same order; of others it is not known who used them.
    users = ranks if len(ranks) == count else [None] * count
    columns = [[row[index] for row in rows if index < len(row)] for index in range(min(count, 64))]
    devices = (_device(f"GPU {index}", users[index], file, column) for index, column in enumerate(columns))
    stolen = [sample.host.stolen_cpu_percent for sample in samples if sample.host.stolen_cpu_percent is not None]
    periods, throttled = (
        int(max(0.0, (getattr(last, name) or 0) - (getattr(first, name) or 0)))
        for name in ("cgroup_periods", "cgroup_throttled_periods")
    )
    waiting, since_s = set(last.ranks_in_disk_wait), dict[int, float]()
    for sample in reversed(samples):  # Up to the first of the trailing samples that found the rank in state D.
        waiting &= set(sample.host.ranks_in_disk_wait)
        since_s |= dict.fromkeys(waiting, sample.time_s)
    core_waits_s = [
        (rank, times[-1] - times[0])
        for rank in ranks
        if (times := [wait_s for sample in samples if (wait_s := sample.host.rank_core_wait_s.get(rank)) is not None])
    ]
    return NodeHealth(
        file=file,
        ranks=ranks,
        core_waits_s=tuple(core_waits_s),
        seconds=samples[-1].time_s - samples[0].time_s,
        devices=tuple(devices),
        cores=int(cores) if cores else None,
        usable_cores=int(last.usable_cores) if last.usable_cores else None,
        quota_cores=last.cgroup_cores,
        periods=periods,
        throttled_periods=throttled,
        stolen_percent=fmean(stolen) if stolen else None,
        disk_waits_s=tuple((rank, samples[-1].time_s - since_s[rank]) for rank in sorted(since_s)),
    )


def _device(name: str, rank: int | None, file: str, samples: Iterable[GpuSample], once: bool = False) -> DeviceHealth:
    busy = [sample for sample in samples if (sample.utilization_percent or 0) >= BUSY_PERCENT]
    counts = Counter(reason for sample in busy for reason in sample.throttle_reasons or ())
    return DeviceHealth(
        name=name,
        rank=rank,
        file=file,
        samples=len(busy),
        slowed=tuple((reason, n / len(busy)) for reason, n in counts.most_common() if reason in SLOWED),
        clock_mhz=median([sample.sm_clock_mhz for sample in busy if sample.sm_clock_mhz] or [0.0]) or None,
        # The widest that was seen: a link that trains again for a moment is no narrow one.
        width=max((_pair(sample.pcie_width, sample.pcie_width_max) for sample in busy), default=(0, 0)),
        generation=max((_pair(sample.pcie_generation, sample.pcie_generation_max) for sample in busy), default=(0, 0)),
        is_one_look=once,
    )


def _pair(now: float | None, most: float | None) -> tuple[int, int]:
    return (int(now), int(most)) if now and most else (0, 0)
