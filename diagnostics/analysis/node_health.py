"""Health of each node's devices and host over the run, from telemetry or `nvidia-smi -q`. Names no cause."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from msgspec import Struct, field

from diagnostics.evidence.model import Evidence
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.telemetry import TelemetryFile
from diagnostics.evidence.readers.timeline import GpuSample, HostSample, NodeSample

SLOWED = frozenset({"hardware_slowdown", "software_thermal", "hardware_thermal", "hardware_power_brake"})
"""Reasons for lower clocks that indicate a fault (nvml.h, nvmlClocksEventReasons); `software_power_cap` is usual."""
BUSY_PERCENT = 50.0  # Utilization above which a device counts as working: an idle one lowers clocks and link by itself.
MOST_SAMPLES = 1000


class DeviceHealth(Struct, frozen=True):
    """Health of one device. Figures cover the samples in which it worked; None = not measured."""

    name: str
    """Name such as `GPU 3`, or its PCI bus address."""
    rank: int | None
    file: str
    samples: int
    """Number of samples in which it worked."""
    slowed: tuple[tuple[str, float], ...] = ()
    """Reason -> fraction of these samples, largest first."""
    clock_mhz: float | None = None
    width: tuple[int, int] = (0, 0)
    """Current lanes of its PCIe link, and the maximum of this device in this system; (0, 0) = not measured."""
    generation: tuple[int, int] = (0, 0)
    """Current and maximum generation of its PCIe link; (0, 0) = not measured."""
    is_one_look: bool = False
    """Whether the figures are a single sample from `nvidia-smi -q`; telemetry samples every second."""


class NodeHealth(Struct, frozen=True):
    """Health of one node."""

    file: str
    ranks: tuple[int, ...]
    seconds: float
    """Time covered by the samples."""
    devices: tuple[DeviceHealth, ...]
    cores: int | None = None
    last: HostSample = field(default_factory=HostSample)
    """The last sample."""
    periods: int = 0
    """Scheduler periods in which the cgroup was runnable while it was sampled."""
    throttled_periods: int = 0
    """Number of these periods in which it was throttled."""
    stolen_percent: float | None = None
    """CPU time that the hypervisor gave to other machines, on average."""
    core_waits_s: tuple[tuple[int, float], ...] = ()
    """Rank -> time that its main thread was runnable but waited for a core."""
    disk_waits_s: tuple[tuple[int, float], ...] = ()
    """Rank -> time up to the last sample during which its main thread was always in state D (uninterruptible sleep)."""
    resident: tuple[tuple[int, int, int], ...] = ()
    """Rank, and its resident bytes at the first and at the last sample."""

    @property
    def core_wait_share(self) -> float:
        """Fraction of the time in which the main thread of the median rank was runnable but waited for a core."""
        return median(wait_s for _, wait_s in self.core_waits_s) / self.seconds if self.core_waits_s else 0.0


def node_health(evidence: Evidence) -> tuple[NodeHealth, ...]:
    """Return the nodes with telemetry, then one for the devices reported by `nvidia-smi -q`."""
    timelines = loaded(evidence.handles(TelemetryFile), lambda file: file.load(0, MOST_SAMPLES))
    nodes = [_node(handle.file, timeline.cores, timeline.samples) for handle, timeline in timelines if timeline.samples]
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
    # A node has one device for each rank, in the same order; the users of other devices are unknown.
    users = ranks if len(ranks) == count else [None] * count
    columns = [[row[index] for row in rows if index < len(row)] for index in range(min(count, 64))]
    devices = (_device(f"GPU {index}", users[index], file, column) for index, column in enumerate(columns))
    stolen = [sample.host.stolen_cpu_percent for sample in samples if sample.host.stolen_cpu_percent is not None]
    periods, throttled = (
        int(max(0.0, (getattr(last, name) or 0) - (getattr(first, name) or 0)))
        for name in ("cgroup_periods", "cgroup_throttled_periods")
    )
    waiting, since_s = set(last.ranks_in_disk_wait), dict[int, float]()
    for sample in reversed(samples):  # Until the first of the trailing samples that found the rank in state D.
        waiting &= set(sample.host.ranks_in_disk_wait)
        since_s |= dict.fromkeys(waiting, sample.time_s)
    core_waits_s = _first_and_last(samples, "rank_core_wait_s")
    return NodeHealth(
        file=file,
        ranks=ranks,
        core_waits_s=tuple((rank, last_s - first_s) for rank, first_s, last_s in core_waits_s),
        seconds=samples[-1].time_s - samples[0].time_s,
        devices=tuple(devices),
        cores=int(cores) if cores else None,
        last=last,
        periods=periods,
        throttled_periods=throttled,
        stolen_percent=fmean(stolen) if stolen else None,
        disk_waits_s=tuple((rank, samples[-1].time_s - since_s[rank]) for rank in sorted(since_s)),
        resident=tuple(_first_and_last(samples, "rank_rss_bytes")),
    )


def _first_and_last(samples: Sequence[NodeSample], name: str) -> list[tuple[int, Any, Any]]:
    """Return each rank with the first and the last value of a figure of `HostSample` that was sampled for it."""
    values: dict[int, list[Any]] = {}
    for sample in samples:
        for rank, value in getattr(sample.host, name).items():
            if value is not None:
                values.setdefault(rank, []).append(value)
    return [(rank, own[0], own[-1]) for rank, own in sorted(values.items())]


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
        # The maximum over all samples: a link that retrains for a moment is not degraded.
        width=max((_pair(sample.pcie_width, sample.pcie_width_max) for sample in busy), default=(0, 0)),
        generation=max((_pair(sample.pcie_generation, sample.pcie_generation_max) for sample in busy), default=(0, 0)),
        is_one_look=once,
    )


def _pair(now: float | None, most: float | None) -> tuple[int, int]:
    return (int(now), int(most)) if now and most else (0, 0)
