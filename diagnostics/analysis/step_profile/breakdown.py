"""One rank's time by use: compute, communication, overlap, exposed, copies, idle; per step, group, phase, copy."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import compress

from msgspec import Struct

from diagnostics.analysis.step_profile.classify import TEXT, Work
from diagnostics.analysis.step_profile.intervals import Interval, Ruler, intersect, subtract, total, union
from diagnostics.evidence.trace.model import HostCopy, Trace, host_copy

_NUMBERS = re.compile(r", (?:seq|op_id|sizes) = .*")
"""Suffix that `torch.autograd.profiler.emit_nvtx` adds to the name of an operation."""
_LOOKED_UP = 50  # Number of copies of one kind, the longest first, for which the enclosing annotation is looked up.


class Breakdown(Struct, frozen=True):
    """Times of one window, ns: wall = compute + exposed communication + exposed copies + idle."""

    wall: int = 0
    compute: int = 0
    """Time with at least one compute kernel running."""
    communication: int = 0
    """Time with at least one collective running."""
    overlapped: int = 0
    """Time with both running."""
    exposed: int = 0
    """Time with a collective running and nothing else."""
    memory: int = 0
    """Time with copies or fills running and no compute."""
    idle: int = 0

    def json(self) -> dict[str, float]:
        """Return the times in ms, as they are stored in the report."""
        result = {f"{name}_ms": getattr(self, name) / 1e6 for name in self.__struct_fields__}
        if self.communication:
            result["overlap_percent"] = 100 * self.overlapped / self.communication
        return result


def attainable_percent(transfer: float, compute: float) -> float:
    """Return the overlap in percent that no schedule can exceed: communication concurrent with all of the compute."""
    return 100.0 if transfer <= 0 else 100 * min(transfer, compute) / transfer


class Covers:
    """The unions of one rank's work intervals by kind, for measuring how much of a window each covers."""

    def __init__(self, work: Work) -> None:
        compute = union([span[:2] for span in work.compute])
        communication = union((call.start, call.end) for call in work.calls)
        memory = union(work.memory)
        busy = union(compute + memory)
        exposed = subtract(communication, busy)
        self.compute = Ruler(compute)
        self.communication = Ruler(communication)
        self.overlapped = Ruler(intersect(communication, compute))
        self.exposed = Ruler(exposed)
        self.memory = Ruler(subtract(memory, compute))
        self.busy = Ruler(union(busy + exposed))
        """Work of any kind."""

    def breakdown(self, start: int, end: int) -> Breakdown:
        """Return the times of one window."""
        wall = max(0, end - start)
        return Breakdown(
            wall=wall,
            compute=self.compute.within(start, end),
            communication=self.communication.within(start, end),
            overlapped=self.overlapped.within(start, end),
            exposed=self.exposed.within(start, end),
            memory=self.memory.within(start, end),
            idle=wall - self.busy.within(start, end),
        )


def charge(exposed: Ruler, calls: Iterable[Interval]) -> list[int]:
    """Return the exposed ns of each call, by start; shared time counts for the first call, so that they add up."""
    result, until = [], None
    for start, end in calls:
        since = start if until is None else max(start, until)
        result.append(exposed.within(since, end))
        until = end if until is None else max(until, end)
    return result


def compatible(trace: Trace, work: Work) -> dict[str, float | str] | None:
    """Return the figures of HolisticTraceAnalysis 0.5.0 as the report has them; None without device communication.

    By default it ignores work launched in the last marked step or without a launch in the trace, and rounds to 1 us.
    """
    steps = sorted({trace.marks.start[i] for i, n in enumerate(trace.marks.name) if "ProfilerStep" in trace.names[n]})
    if not trace.on_device or not work.calls:
        return None
    limit = steps[-1] if len(steps) > 1 else None
    calls = [(call.start, call.end) for call in work.calls if limit is None or 0 <= call.issued < limit]
    computes = [span[:2] for span in work.compute if limit is None or 0 <= span[3] < limit]
    rows = compress(zip(trace.device.start, trace.device.end, trace.launch), trace.is_memory)
    copies = [(start, end) for start, end, launch in rows if limit is None or 0 <= launch < limit]
    if trace.fractional:
        for spans in (calls, computes, copies):  # To whole microseconds.
            firsts = ((math.ceil(start / 1000) * 1000, math.floor(end / 1000) * 1000) for start, end in spans)
            spans[:] = [(first, max(first, last)) for first, last in firsts]
    communication, compute, spans = union(calls), union(computes), calls + computes + copies
    if not communication:
        return None
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    idle, computing = wall - total(union(communication + compute + copies)), total(compute)
    return {
        "overlap_percent": round(100 * total(intersect(communication, compute)) / total(communication), 2),
        "idle_percent": round(100 * idle / wall, 2),
        "compute_percent": round(100 * computing / wall, 2),
        "non_compute_percent": round(100 * (wall - computing - idle) / wall, 2),
        "window": "without_last_step" if limit is not None else "whole_file",
    }


class CopyProfile(Struct):
    """All copies of one direction and kind of host memory."""

    kind: HostCopy
    count: int = 0
    size_bytes: int = 0
    """Total size; 0 if not recorded."""
    duration: int = 0
    """Total duration in ns."""
    exposed: int = 0
    """Time in ns without concurrent compute; time shared with an earlier copy counts for that one."""
    within: str = ""
    """Innermost annotation in which the host issued most of them; empty if none."""


def copy_profiles(trace: Trace, work: Work, covers: Covers) -> list[CopyProfile]:
    """Return the copies between host and device by kind, in descending order of exposed time."""
    kinds = [host_copy(name) for name in trace.names] if work.memory else []
    rows = []
    columns = zip(trace.device.start, trace.device.end, trace.device.name, trace.is_memory)
    for at, (start, end, name, memory) in enumerate(columns):
        if memory and (kind := kinds[name]) is not None:
            rows.append((start, end, at, kind))
    rows.sort(key=lambda row: row[:3])
    cover = union([row[:2] for row in rows])
    alone = charge(Ruler(subtract(cover, covers.compute.cover)), [row[:2] for row in rows])
    profiles: dict[HostCopy, CopyProfile] = {}
    launches: dict[HostCopy, list[tuple[int, int, int]]] = defaultdict(list)
    for (start, end, at, kind), exposed in zip(rows, alone):
        own = profiles.setdefault(kind, CopyProfile(kind))
        own.count += 1
        own.size_bytes += trace.copied_bytes.get(at, 0)
        own.duration += end - start
        own.exposed += exposed
        launches[kind].append((end - start, trace.launch[at], trace.launcher[at]))
    for kind, own in profiles.items():
        own.within = _within(trace, sorted(launches[kind], reverse=True)[:_LOOKED_UP])
    return sorted(profiles.values(), key=lambda own: (-own.exposed, own.kind))


def _within(trace: Trace, spans: list[tuple[int, int, int]]) -> str:
    marks, time = trace.marks, dict[str, int]()
    rows = zip(marks.start, marks.end, marks.name, marks.lane)
    around = [row for row in rows if not TEXT["step"].match(trace.names[row[2]])]
    for length, launch, lane in spans:
        inside = [(end - start, name) for start, end, name, of in around if start <= launch < end and of == lane]
        if inside:
            name = _NUMBERS.sub("", trace.names[min(inside)[1]])
            time[name] = time.get(name, 0) + length
    return max(time, key=lambda name: time[name], default="")
