"""Snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`): pickle, or the same as JSON.

Reduces one file to what detectors ask: reserved against allocated, free blocks, who holds the bytes, the
history as a curve, what was asked for when memory ran out. Source of the fields: torch/csrc/cuda/Module.cpp,
`_memory_snapshot`, of torch 2.0 to 2.13. Knows no verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.evidence import safe_pickle
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.limits import Limits, whole
from diagnostics.evidence.memory_timeline import thinned
from diagnostics.evidence.model import Frame

MAX_POINTS = 500
MAX_HOLDERS = 20
_WORDS = (b"total_size", b"device_traces", b"allocator_settings", b"segment_type")
_MAX_BYTES = 1 << 50


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a snapshot of the allocator."""
    if head.lstrip()[:1] == b"{":
        return b'"segments"' in head and any(b'"%b"' % word in head for word in _WORDS)
    return head[:1] == b"\x80" and b"segments" in head and any(word in head for word in _WORDS)


@dataclass(frozen=True, slots=True)
class Holder:
    """Live bytes that were allocated at one place."""

    site: Frame | None
    """Innermost frame outside torch; None where stacks were not recorded."""
    size_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One `oom` event of the history."""

    device: int
    requested_bytes: int
    free_bytes: int | None
    """On the device, as the driver said at that moment."""
    site: Frame | None


@dataclass(slots=True)
class DeviceMemory:
    """One device's memory at the moment of the snapshot."""

    device: int
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    """In blocks that hold a tensor."""
    pending_bytes: int = 0
    """Freed by Python, still awaited by another stream (record_stream)."""
    largest_free_bytes: int = 0
    free_blocks: int = 0
    segments: int = 0
    expandable_segments: int = 0
    holders: list[Holder] = field(default_factory=list)
    """The largest first."""
    curve: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, allocated bytes) over the recorded history."""
    peak_bytes: int = 0
    """Over the recorded history, at least what is allocated now."""
    peak_site: Frame | None = None
    """Where the allocation was made that reached the peak."""

    @property
    def unused_bytes(self) -> int:
        """Reserved, and no tensor in it."""
        return max(0, self.reserved_bytes - self.allocated_bytes - self.pending_bytes)


@dataclass(slots=True)
class Snapshot:
    """One file."""

    devices: dict[int, DeviceMemory]
    settings: dict[str, Any]
    out_of_memory: list[OutOfMemory]


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A handle; the file is read by `load`."""

    path: Path
    file: str
    """Relative to the evidence's root."""
    rank: int | None
    limits: Limits

    def load(self) -> Snapshot:
        """The snapshot, reduced.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, too large, or no snapshot.
        """
        data = whole(self.path, self.limits)
        try:
            value = _value(data, self.limits)
            return _snapshot(value)
        except (RecursionError, TypeError, OverflowError, MemoryError, UnicodeError, AttributeError) as problem:
            raise ValueError(f"damaged snapshot: {type(problem).__name__}") from problem


def _value(data: bytes, limits: Limits) -> dict[str, Any]:
    if not data.strip():
        raise ValueError("the file is empty")
    if data.lstrip()[:1] == b"{":
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError as problem:
            raise ValueError(f"damaged JSON: {problem}") from problem
    else:
        value = safe_pickle.loads(data, limits)
    if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
        raise ValueError("no snapshot of the allocator: it has no list of segments")
    return value


def _snapshot(value: dict[str, Any]) -> Snapshot:
    devices: dict[int, DeviceMemory] = {}
    held: dict[int, dict[Frame | None, list[int]]] = {}
    for segment in _dicts(value["segments"]):
        number = _size(segment.get("device")) or 0
        device = devices.setdefault(number, DeviceMemory(number))
        _segment(segment, device, held.setdefault(number, {}))
    for number, device in devices.items():
        device.peak_bytes = device.allocated_bytes
        found = [Holder(site, size, count) for site, (size, count) in held[number].items()]
        device.holders = sorted(found, key=lambda one: (-one.size_bytes, str(one.site)))[:MAX_HOLDERS]
    ran_out: list[OutOfMemory] = []
    traces = value.get("device_traces")
    for number, events in enumerate(traces if isinstance(traces, list) else ()):
        if isinstance(events, list):
            _history(events, number, devices, ran_out)
    settings = value.get("allocator_settings")
    return Snapshot(devices, dict(settings) if isinstance(settings, dict) else {}, ran_out)


def _segment(segment: Mapping[str, Any], device: DeviceMemory, held: dict[Frame | None, list[int]]) -> None:
    device.segments += 1
    device.reserved_bytes += _size(segment.get("total_size")) or 0
    device.expandable_segments += segment.get("is_expandable") is True
    for block in _dicts(segment.get("blocks")):
        size, state = _size(block.get("size")) or 0, block.get("state")
        if state == "active_allocated":
            device.allocated_bytes += size
            entry = held.setdefault(site_of(block.get("frames") or _old_frames(block)), [0, 0])
            entry[0] += size
            entry[1] += 1
        elif isinstance(state, str) and state.startswith("active"):
            device.pending_bytes += size
        else:
            device.free_blocks += 1
            device.largest_free_bytes = max(device.largest_free_bytes, size)


def _old_frames(block: Mapping[str, Any]) -> object:
    """In torch 2.0 the block had a history with the stack."""
    history = block.get("history")
    first = history[0] if isinstance(history, list) and history else None
    return first.get("frames") if isinstance(first, dict) else None


def _history(events: Sequence[Any], number: int, devices: dict[int, DeviceMemory], ran_out: list[OutOfMemory]) -> None:
    """The curve: walked backwards from what is allocated now, since the first events may be overwritten."""
    device = devices.setdefault(number, DeviceMemory(number))
    level = device.allocated_bytes
    points: list[tuple[float, int]] = []
    for event in reversed(events):
        if not isinstance(event, dict):
            continue
        action, size = event.get("action"), _size(event.get("size")) or 0
        if action == "oom":
            ran_out.append(OutOfMemory(number, size, _size(event.get("device_free")), site_of(event.get("frames"))))
        elif action in ("alloc", "free_requested", "free_completed"):
            time_s = _time_s(event, len(points))
            points.append((time_s, level))
            if action == "alloc":
                if level > device.peak_bytes:
                    device.peak_bytes, device.peak_site = level, site_of(event.get("frames"))
                level -= size
            elif action == "free_requested":
                level += size
    points.reverse()
    first_s = points[0][0] if points else 0.0
    device.curve = [(time_s - first_s, max(0, size)) for time_s, size in thinned(points, MAX_POINTS)]


def _time_s(event: Mapping[str, Any], index: int) -> float:
    """Events before torch 2.1 have no time: their order stands for it."""
    time_us = event.get("time_us")
    return time_us / 1e6 if isinstance(time_us, int) and 0 < time_us < 1 << 62 else -float(index)


def site_of(frames: object) -> Frame | None:
    """The innermost frame outside torch and C++."""
    for raw in frames if isinstance(frames, list | tuple) else ():
        if not isinstance(raw, dict):
            continue
        file, line = str(raw.get("filename", "")), raw.get("line")
        if file and file != "??" and not file.endswith((".cpp", ".cu", ".h", ".c")) and not is_library(file):
            return Frame(file, line if isinstance(line, int) else 0, str(raw.get("name", "")))
    return None


def _dicts(value: object) -> Iterable[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def _size(value: object) -> int | None:
    """A plausible number of bytes, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_BYTES else None
