"""dtk's memory timelines (one line a step and rank) and telemetry (one line a second and node).

Streams a file of any length down to a bounded number of points that keep the peaks. Knows no verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs.lines import LineReader
from diagnostics.evidence.reader import Reader, opens

MAX_STEPS = 4000
"""Steps kept for growth; a longer timeline keeps every second one, then every fourth, ..."""
MAX_POINTS = 500
_FIELDS = (
    "rss_bytes", "peak_rss_bytes", "allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "peak_reserved_bytes",
    "inactive_split_bytes", "allocation_retries",
)  # fmt: skip
_Key = TypeVar("_Key", int, float)
_Size = TypeVar("_Size", int, float)


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a memory timeline of a rank."""
    line = head.partition(b"\n")[0].lstrip()
    return line[:1] == b"{" and b'"step"' in line and b'"rss_bytes"' in line


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One rank's memory as a step begins; None = not measured."""

    step: int
    time_s: float
    rss_bytes: int | None
    peak_rss_bytes: int | None
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    allocation_retries: int | None = None


@dataclass(slots=True)
class DeviceSamples:
    """One device of a node over time, by NVML: whoever uses it, whatever it is used for."""

    total_bytes: int | None = None
    curve: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since 1970, bytes in use)"""

    @property
    def peak_bytes(self) -> int:
        """Highest use seen."""
        return max((size for _, size in self.curve), default=0)


@dataclass(slots=True)
class Timeline:
    """One file. A rank's file has `steps`, a node's has the rest."""

    steps: list[StepMemory] = field(default_factory=list)
    """Ascending by time; of the last attempt."""
    rank_rss: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Resident bytes of each rank of a node."""
    devices: dict[int, DeviceSamples] = field(default_factory=dict)
    """By local index."""
    host_total_bytes: int | None = None
    host_used: list[tuple[float, int]] = field(default_factory=list)
    damaged: int = 0
    """Lines that could not be understood."""


@dataclass(frozen=True, slots=True)
class TimelineFile:
    """A handle; the file is read by `load`."""

    path: Path
    file: str
    """Relative to the evidence's root."""
    rank: int | None
    """As its name says; the number of the node for telemetry."""
    limits: Limits

    def load(self, most_steps: int = MAX_STEPS) -> Timeline:
        """Return the timeline, thinned out.

        Args:
            most_steps: to keep, where a job has so many ranks that all of their steps would be too many.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is too large or holds no record at all.
        """
        timeline = Timeline()
        kept = _Kept(most_steps)
        for record in self._records(timeline):
            if record.get("kind") in ("about", "sample"):
                _sample(record, timeline)
            elif (step := _step(record)) is not None:
                if kept.last is not None and step.step < kept.last.step:
                    kept = _Kept(most_steps)  # a new attempt goes on in the same file
                kept.add(step)
            else:
                timeline.damaged += 1
        timeline.steps = kept.steps()
        if not timeline.steps and not timeline.host_used and timeline.damaged:
            raise ValueError("no line of it is a record of memory")
        _thin(timeline)
        return timeline

    def _records(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        for _, line in LineReader(self.path, self.limits, (b"{",), lambda: False).lines():
            try:
                record = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                yield record
            else:
                timeline.damaged += 1


@dataclass(slots=True)
class _Kept:
    """At most `most` steps evenly spread, and the last and the highest one."""

    most: int
    stride: int = 1
    seen: int = 0
    held: list[StepMemory] = field(default_factory=list)
    last: StepMemory | None = None
    highest: StepMemory | None = None

    def add(self, step: StepMemory) -> None:
        """Add the next step of the file."""
        if self.seen % self.stride == 0:
            self.held.append(step)
        self.seen += 1
        self.last = step
        if self.highest is None or _height(step) > _height(self.highest):
            self.highest = step
        if len(self.held) > self.most:
            self.held, self.stride = self.held[::2], self.stride * 2

    def steps(self) -> list[StepMemory]:
        """All that were kept, ascending."""
        more = [one for one in (self.last, self.highest) if one is not None]
        return [one for _, one in sorted({one.step: one for one in [*self.held, *more]}.items())]


def _height(step: StepMemory) -> int:
    """Bytes in tensors, else of the process."""
    return (step.rss_bytes if step.allocated_bytes is None else step.allocated_bytes) or 0


def thinned(points: Sequence[tuple[_Key, _Size]], most: int) -> list[tuple[_Key, _Size]]:
    """At most `most` points, each the highest of its stretch, so that peaks stay."""
    if len(points) <= most:
        return list(points)
    width = -(-len(points) // most)
    return [max(points[n : n + width], key=lambda point: point[1]) for n in range(0, len(points), width)]


def _step(record: Mapping[str, Any]) -> StepMemory | None:
    step, time_s = record.get("step"), _time(record.get("time_s"))
    if not isinstance(step, int) or isinstance(step, bool) or time_s is None or "rss_bytes" not in record:
        return None
    values = {name: _size(record.get(name)) for name in _FIELDS}
    return StepMemory(step=step, time_s=time_s, **values)


def _sample(record: Mapping[str, Any], timeline: Timeline) -> None:
    time_s = _time(record.get("time_s"))
    if record.get("kind") != "sample" or time_s is None:
        return
    host = record.get("host")
    if isinstance(host, dict):
        timeline.host_total_bytes = _size(host.get("memory_total_bytes")) or timeline.host_total_bytes
        _add(timeline.host_used, time_s, host.get("memory_used_bytes"))
        ranks = host.get("rank_rss_bytes")
        for key, size in ranks.items() if isinstance(ranks, dict) else ():
            if key.isdecimal() and len(key) < 8:
                _add(timeline.rank_rss.setdefault(int(key), []), time_s, size)
    gpus = record.get("gpu")
    for index, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
        if isinstance(gpu, dict) and index < 64:
            device = timeline.devices.setdefault(index, DeviceSamples())
            device.total_bytes = _size(gpu.get("memory_total_bytes")) or device.total_bytes
            _add(device.curve, time_s, gpu.get("memory_used_bytes"))


def _add(points: list[tuple[float, int]], time_s: float, value: object) -> None:
    """Append; when too many have come together, keep the peaks of neighbours."""
    size = _size(value)
    if size is not None:
        points.append((time_s, size))
        if len(points) > 4 * MAX_POINTS:
            points[:] = thinned(points, MAX_POINTS)


def _thin(timeline: Timeline) -> None:
    timeline.host_used = thinned(timeline.host_used, MAX_POINTS)
    timeline.rank_rss = {rank: thinned(timeline.rank_rss[rank], MAX_POINTS) for rank in sorted(timeline.rank_rss)}
    for device in timeline.devices.values():
        device.curve = thinned(device.curve, MAX_POINTS)


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50 else None


READER = Reader(
    kind="timeline", title="memory timelines", recognise=recognise, open=opens(TimelineFile), per_rank="timeline"
)
