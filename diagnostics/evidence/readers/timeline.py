"""dtk's memory timelines (one line per step and rank) and telemetry (one line per second and node)."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Struct, field

from diagnostics.evidence.logs.lines import LineReader
from diagnostics.evidence.model import Size, Time
from diagnostics.evidence.reader import Handle, Reader, opens

MAX_STEPS = 4000
"""Steps kept for growth; a longer timeline keeps every second one, then every fourth, ..."""
MAX_POINTS = 500
Share = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""A percentage, a number of cores, a counter."""
_Key = TypeVar("_Key", int, float)
_Size = TypeVar("_Size", int, float)


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a memory timeline of a rank."""
    line = head.partition(b"\n")[0].lstrip()
    return line[:1] == b"{" and b'"step"' in line and b'"rss_bytes"' in line


class StepMemory(msgspec.Struct, frozen=True):
    """One rank's memory at the start of a step. A field is None if not measured."""

    step: int
    time_s: Time
    rss_bytes: Size | None
    allocated_bytes: Size | None = None
    peak_allocated_bytes: Size | None = None
    reserved_bytes: Size | None = None
    peak_reserved_bytes: Size | None = None
    allocation_retries: Size | None = None


class _Memory(msgspec.Struct):
    memory_total_bytes: Size | None = None
    memory_used_bytes: Size | None = None


class HostSample(_Memory):
    """A node at one moment; percentages are since the previous sample, counters since its cgroup was created."""

    rank_rss_bytes: dict[int, Size | None] = {}
    ranks_in_disk_wait: list[int] = []
    rank_core_wait_s: dict[int, Share | None] = {}
    rank_numa_nodes: dict[int, list[int]] = {}
    rank_gpu_numa_node: dict[int, int] = {}
    cpu_percent: Share | None = None
    stolen_cpu_percent: Share | None = None
    usable_cores: Share | None = None
    cgroup_cores: Share | None = None
    cgroup_periods: Share | None = None
    cgroup_throttled_periods: Share | None = None


class GpuSample(_Memory):
    """A device at one moment. A field is None if not measured."""

    utilization_percent: Share | None = None
    sm_clock_mhz: Share | None = None
    throttle_reasons: list[str] | None = None
    pcie_generation: Share | None = None
    pcie_generation_max: Share | None = None
    pcie_width: Share | None = None
    pcie_width_max: Share | None = None


class _About(msgspec.Struct, tag_field="kind", tag="about"):
    cores: Share | None = None


class NodeSample(msgspec.Struct, tag_field="kind", tag="sample"):
    """A line of a node's telemetry."""

    time_s: Time
    host: HostSample = msgspec.field(default_factory=HostSample)
    gpu: list[GpuSample] | None = None


_STEP, _OF_NODE = msgspec.json.Decoder(StepMemory), msgspec.json.Decoder(_About | NodeSample)


class DeviceSamples(Struct):
    """Use of one device of a node over time according to NVML, by all processes."""

    total_bytes: int | None = None
    curve: list[tuple[float, int]] = field(default_factory=list)
    """Pairs (seconds since 1970, bytes in use)."""

    @property
    def peak_bytes(self) -> int:
        """Highest recorded use in bytes."""
        return max((size for _, size in self.curve), default=0)


class Timeline(Struct):
    """One file. A rank's file has `steps`, a node's has the rest."""

    steps: list[StepMemory] = field(default_factory=list)
    """Steps of the last attempt, in ascending order of time."""
    rank_rss: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Resident bytes over time by rank of a node."""
    devices: dict[int, DeviceSamples] = field(default_factory=dict)
    """Devices by local index."""
    host_total_bytes: int | None = None
    host_used: list[tuple[float, int]] = field(default_factory=list)
    cores: float | None = None
    """Number of cores of the node."""
    samples: list[NodeSample] = field(default_factory=list)
    """Samples of the node, ascending, if requested; for a long run every second one, or every fourth, ..."""
    damaged: int = 0
    """Number of lines that could not be decoded."""


class TimelineFile(Handle, frozen=True):
    """A timeline of a rank, or the telemetry of a node, whose number is stored as `rank`."""

    kind = "timeline"

    def load(self, most_steps: int = MAX_STEPS, most_samples: int = 0) -> Timeline:
        """Return the timeline, with at most as many steps, and as many of a node's samples, as given.

        OSError if the file cannot be read, ValueError if it is too large or holds no record at all.
        """
        timeline, count, stride = Timeline(), 0, 1
        sampled = _Sampled(most_steps)
        for _, line in LineReader(self.path, self.limits, (b"{",), lambda: False).lines():
            try:
                if b'"kind"' in line:
                    record = _OF_NODE.decode(line)
                    _sample(record, timeline)
                    if most_samples and isinstance(record, NodeSample):
                        timeline.samples += [record] if count % stride == 0 else []
                        count += 1
                    if len(timeline.samples) > most_samples:
                        timeline.samples, stride = timeline.samples[::2], stride * 2
                    continue
                step = _STEP.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                timeline.damaged += 1
                continue
            if sampled.last is not None and step.step < sampled.last.step:
                sampled = _Sampled(most_steps)  # A new attempt continues in the same file.
            sampled.add(step)
        timeline.steps = sampled.steps()
        if not timeline.steps and not timeline.host_used and timeline.damaged:
            raise ValueError("no line is a memory record")
        timeline.host_used = thinned(timeline.host_used, MAX_POINTS)
        timeline.rank_rss = {rank: thinned(points, MAX_POINTS) for rank, points in sorted(timeline.rank_rss.items())}
        for device in timeline.devices.values():
            device.curve = thinned(device.curve, MAX_POINTS)
        return timeline


class _Sampled(Struct):
    """Keeps at most `most` evenly spaced steps, and the last and the highest one."""

    most: int
    stride: int = 1
    seen: int = 0
    sampled: list[StepMemory] = field(default_factory=list)
    last: StepMemory | None = None
    highest: StepMemory | None = None

    def add(self, step: StepMemory) -> None:
        """Add the next step of the file."""
        if self.seen % self.stride == 0:
            self.sampled.append(step)
        self.seen += 1
        self.last = step
        if self.highest is None or _height(step) > _height(self.highest):
            self.highest = step
        if len(self.sampled) > self.most:
            self.sampled, self.stride = self.sampled[::2], self.stride * 2

    def steps(self) -> list[StepMemory]:
        """Return the steps that are kept, ascending."""
        by_number = {step.step: step for step in (*self.sampled, self.last, self.highest) if step is not None}
        return [by_number[number] for number in sorted(by_number)]


def _height(step: StepMemory) -> int:
    return (step.rss_bytes if step.allocated_bytes is None else step.allocated_bytes) or 0


def thinned(points: Sequence[tuple[_Key, _Size]], most: int) -> list[tuple[_Key, _Size]]:
    """Return at most `most` points, each the highest of its interval, so that peaks are kept."""
    if len(points) <= most:
        return list(points)
    width = -(-len(points) // most)
    return [max(points[n : n + width], key=lambda point: point[1]) for n in range(0, len(points), width)]


def _sample(record: _About | NodeSample, timeline: Timeline) -> None:
    if isinstance(record, _About):
        timeline.cores = record.cores
        return
    time_s, host = record.time_s, record.host
    timeline.host_total_bytes = host.memory_total_bytes or timeline.host_total_bytes
    _add(timeline.host_used, time_s, host.memory_used_bytes)
    for rank, size in host.rank_rss_bytes.items():
        _add(timeline.rank_rss.setdefault(rank, []), time_s, size)
    for index, gpu in enumerate((record.gpu or [])[:64]):
        device = timeline.devices.setdefault(index, DeviceSamples())
        device.total_bytes = gpu.memory_total_bytes or device.total_bytes
        _add(device.curve, time_s, gpu.memory_used_bytes)


def _add(points: list[tuple[float, int]], time_s: float, size: int | None) -> None:
    """Append a point; if there are too many, keep the higher one of each pair of neighbours."""
    if size is not None:
        points.append((time_s, size))
        if len(points) > 4 * MAX_POINTS:
            points[:] = thinned(points, MAX_POINTS)


READER = Reader(
    kind=TimelineFile.kind, title="memory records", recognise=recognise, open=opens(TimelineFile), per_rank="timeline"
)
