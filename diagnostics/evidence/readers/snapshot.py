"""Snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`): pickle, or the same as JSON.

Source of the fields: torch/csrc/cuda/Module.cpp, `_memory_snapshot`, of torch 2.0 to 2.13.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from diagnostics.evidence import safe_pickle
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.memory import history as memory_history
from diagnostics.evidence.memory.history import Annotation, History, owner
from diagnostics.evidence.memory.levels import total
from diagnostics.evidence.model import Frame, size_of
from diagnostics.evidence.reader import Handle, Reader, opens

_WORDS = (b"total_size", b"device_traces", b"allocator_settings", b"segment_type")
MAX_NAME = 200
_CHANGES = {
    "alloc": ("allocated", 1), "free_completed": ("allocated", -1), "segment_alloc": ("reserved", 1),
    "segment_map": ("reserved", 1), "segment_free": ("reserved", -1), "segment_unmap": ("reserved", -1),
}  # fmt: skip
"""Event -> what it changes."""
_Blocks = dict[int, tuple[int, str]]


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is an allocator snapshot."""
    if head.lstrip()[:1] == b"{":
        return b'"segments"' in head and any(b'"%b"' % word in head for word in _WORDS)
    return head[:1] == b"\x80" and b"segments" in head and any(word in head for word in _WORDS)


class OutOfMemory(Struct, frozen=True):
    """One `oom` event of the history."""

    device: int
    requested_bytes: int
    free_bytes: int | None
    """Free bytes on the device at that moment, as reported by the driver."""
    site: Frame | None
    allocated_bytes: int = 0
    """Bytes in tensors at that moment."""
    reserved_bytes: int = 0
    places: tuple[str, ...] = ()
    """File and function of each frame, innermost first."""


class DeviceMemory(Struct):
    """One device's memory at the moment of the snapshot."""

    device: int
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    """Bytes in blocks that hold a tensor."""
    pending_bytes: int = 0
    """Bytes freed by Python but still in use by another stream (record_stream)."""
    largest_free_bytes: int = 0
    free_blocks: int = 0
    segments: int = 0
    peak_bytes: int = 0
    """Peak over the recorded history, at least the bytes allocated now."""
    peak_site: Frame | None = None
    """Frame of the allocation that reached the peak."""
    saved_site: Frame | None = None
    """Frame of the largest copy for a full state dict that is alive at the peak."""
    history: History | None = None
    """History of the device; None if no event was recorded."""
    kept: dict[Frame | None, Counter[int]] = field(default_factory=dict)
    """Bytes by frame and step that were never freed and are not model states."""

    @property
    def unused_bytes(self) -> int:
        """Bytes reserved but not in a tensor."""
        return max(0, self.reserved_bytes - self.allocated_bytes - self.pending_bytes)


class Snapshot(Struct):
    """One file."""

    devices: dict[int, DeviceMemory]
    settings: dict[str, Any]
    out_of_memory: list[OutOfMemory]


class SnapshotFile(Handle, frozen=True):
    """A snapshot of the allocator."""

    kind = "snapshot"

    def load(self) -> Snapshot:
        """Return the snapshot in reduced form."""
        return safe_pickle.load_plain(self.path, self.limits, _snapshot, "snapshot")


def _snapshot(value: dict[str, Any]) -> Snapshot:
    if not isinstance(value.get("segments"), list):
        raise ValueError("not an allocator snapshot: it has no list of segments")
    devices: dict[int, DeviceMemory] = {}
    blocks: dict[int, _Blocks] = {}
    for segment in _dicts(value["segments"]):
        number = size_of(segment.get("device")) or 0
        device = devices.setdefault(number, DeviceMemory(number))
        _segment(segment, device, blocks.setdefault(number, {}))
    for device in devices.values():
        device.peak_bytes = device.allocated_bytes
    ran_out: list[OutOfMemory] = []
    traces, marks = value.get("device_traces"), _annotations(value.get("external_annotations"))
    for number, events in enumerate(traces if isinstance(traces, list) else ()):
        if isinstance(events, list) and events:
            device = devices.setdefault(number, DeviceMemory(number))
            own, alive = list(_dicts(events)), blocks.get(number, {})
            history = memory_history.read(own, alive, device.reserved_bytes, marks.get(number, []))
            if history.peak is not None:
                device.history = history
                device.peak_bytes = max(device.allocated_bytes, total(history.peak))
                device.peak_site = site_of((history.peak_event or {}).get("frames"))
            if history.saved:
                largest = max((own[at] for at in history.saved), key=lambda event: size_of(event.get("size")) or 0)
                device.saved_site = site_of(largest.get("frames"))
            for place, step in history.kept:
                sizes = device.kept.setdefault(site_of(own[place].get("frames")), Counter())
                sizes[step] += size_of(own[place].get("size")) or 0
            ran_out += _failures(device, own)
    settings = value.get("allocator_settings")
    return Snapshot(devices, dict(settings) if isinstance(settings, dict) else {}, ran_out)


def _failures(device: DeviceMemory, events: list[dict[str, Any]]) -> Iterator[OutOfMemory]:
    """Yield the failed requests, newest first, with the memory held at the time."""
    levels = {"allocated": device.allocated_bytes + device.pending_bytes, "reserved": device.reserved_bytes}
    for event in reversed(events):
        action, size = str(event.get("action")), size_of(event.get("size")) or 0
        if action == "oom":
            frames = [raw for raw in event.get("frames") or () if isinstance(raw, dict)][: memory_history.MAX_FRAMES]
            places = tuple(f"{raw.get('filename')} {raw.get('name')}" for raw in frames)
            free_bytes = size_of(event.get("device_free"))
            allocated_bytes, reserved_bytes = (max(0, amount) for amount in levels.values())
            amounts = (size, free_bytes, site_of(frames), allocated_bytes, reserved_bytes)
            yield OutOfMemory(device.device, *amounts, places)
        elif action in _CHANGES:
            what, sign = _CHANGES[action]
            levels[what] -= sign * size


def _segment(segment: Mapping[str, Any], device: DeviceMemory, blocks: _Blocks) -> None:
    device.segments += 1
    device.reserved_bytes += size_of(segment.get("total_size")) or 0
    start = segment.get("address")
    address = start if isinstance(start, int) else 0
    for block in _dicts(segment.get("blocks")):
        size, state = size_of(block.get("size")) or 0, block.get("state")
        if state == "active_allocated":
            history = block.get("history")  # Of torch 2.0: its first entry has the stack.
            first = history[0] if isinstance(history, list) and history else None
            frames = block.get("frames") or (first.get("frames") if isinstance(first, dict) else None)
            device.allocated_bytes += size
            place = block.get("address")
            blocks[place if isinstance(place, int) else address] = (size, owner({**block, "frames": frames}))
        elif isinstance(state, str) and state.startswith("active"):
            device.pending_bytes += size
        else:
            device.free_blocks += 1
            device.largest_free_bytes = max(device.largest_free_bytes, size)
        address += size


def _annotations(value: object) -> dict[int, list[Annotation]]:
    """Return annotations of `record_function` by device, ascending (torch 2.4 and later)."""
    marks_of: dict[int, list[Annotation]] = {}
    for annotation in _dicts(value):
        time_us, name, stage = map(annotation.get, ("time_us", "name", "stage"))
        if isinstance(time_us, int) and 0 < time_us < 1 << 62 and isinstance(name, str) and stage in ("START", "END"):
            mark = (time_us, stage == "START", name[:MAX_NAME])
            marks_of.setdefault(size_of(annotation.get("device")) or 0, []).append(mark)
    for marks in marks_of.values():
        marks.sort(key=lambda mark: mark[0])
    return marks_of


def site_of(frames: object) -> Frame | None:
    """Return the innermost frame outside torch and C++."""
    for raw in frames if isinstance(frames, list | tuple) else ():
        if not isinstance(raw, dict):
            continue
        file, line = str(raw.get("filename", "")), raw.get("line")
        if file and file != "??" and not file.endswith((".cpp", ".cu", ".h", ".c")) and not is_library(file):
            return Frame(file, line if isinstance(line, int) else 0, str(raw.get("name", "")))
    return None


def _dicts(value: object) -> Iterable[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


READER = Reader(
    kind=SnapshotFile.kind,
    title="memory snapshots",
    recognise=recognise,
    open=opens(SnapshotFile),
    suffixes=(".pickle",),
    per_rank="snapshot",
    of_rank=True,
)
