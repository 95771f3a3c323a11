"""One rank's time by use: compute, communication, overlap, exposed, copies, idle; per step, group and phase."""

import math
from collections.abc import Iterable
from itertools import compress

from msgspec import Struct

from diagnostics.analysis.step_profile.classify import Work
from diagnostics.analysis.step_profile.intervals import Cover, Interval, Ruler, holes, intersect, subtract, total, union
from diagnostics.evidence.trace.model import Trace


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

    def gaps(self, start: int, end: int, least: int) -> Cover:
        """Return the stretches without any work that last at least `least`."""
        return holes(self.busy.cover, start, end, least)


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

    By default it ignores work launched in the last marked step or without a launch in the trace, and rounds times to
    whole microseconds.
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
        calls, computes, copies = (list(map(_whole_us, spans)) for spans in (calls, computes, copies))
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


def _whole_us(span: Interval) -> Interval:
    first, last = math.ceil(span[0] / 1000) * 1000, math.floor(span[1] / 1000) * 1000
    return first, max(first, last)
