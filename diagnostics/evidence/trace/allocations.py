"""Allocations in a profiler trace: the `[memory]` events that `profile_memory=True` leaves.

Owns their form. What the bytes belong to is for the memory detectors.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diagnostics.evidence.limits import Limits, blocks
from diagnostics.evidence.trace.scan import Scan

_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\D)')
_OVERLAP = 64
"""Bytes that two blocks share in the search, so that none cuts the key in two."""
_NAME = "[memory]"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One allocation (`bytes` > 0) or release (< 0)."""

    ts_us: float
    """Since 1970 where the trace has a base; resolution 0.25 us."""
    bytes: int
    address: int
    total_allocated_bytes: int
    """Of the device, after it."""
    total_reserved_bytes: int
    """Of CUDA's caching allocator; 0 on CPU."""
    device_type: int
    """torch's number: 0 = CPU, 1 = CUDA."""
    device_id: int
    """-1 = CPU."""
    thread: int
    """Of the host."""


class _Args(msgspec.Struct, gc=False):
    size: int | None = msgspec.field(name="Bytes", default=None)
    address: int = msgspec.field(name="Addr", default=0)
    allocated: int = msgspec.field(name="Total Allocated", default=0)
    reserved: int = msgspec.field(name="Total Reserved", default=0)
    device_type: int = msgspec.field(name="Device Type", default=0)
    device_id: int = msgspec.field(name="Device Id", default=-1)


class _Event(msgspec.Struct, gc=False):
    name: str = ""
    ts: int | float = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw()


def base_time_ns(path: Path, limits: Limits) -> int:
    """Return the time that all times of the trace are relative to, in ns since 1970, or 0 if they are absolute.

    Raises:
        OSError: the file cannot be read.
    """
    tail = b""
    try:
        for block in blocks(path, limits):
            data = tail + block
            match = _BASE.search(data)
            if match:
                return int(match.group(1))
            tail = data[-_OVERLAP:]
    except ValueError:
        pass  # Damage is for whoever reads the events to tell.
    return 0


def read_memory_events(path: Path, limits: Limits) -> Iterator[MemoryEvent]:
    """All `[memory]` events, in the order of the file. Of a damaged file those before the damage.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no trace.
    """
    base_us = base_time_ns(path, limits) / 1000
    decode = msgspec.json.Decoder(_Args).decode
    for batch in Scan(path, limits, _Event).batches():
        for event in batch:
            if event.name != _NAME:
                continue
            try:
                args = decode(event.args)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if args.size is None:
                continue
            yield MemoryEvent(
                ts_us=event.ts + base_us,
                bytes=args.size,
                address=args.address,
                total_allocated_bytes=args.allocated,
                total_reserved_bytes=args.reserved,
                device_type=args.device_type,
                device_id=args.device_id,
                thread=event.tid if isinstance(event.tid, int) else 0,
            )
