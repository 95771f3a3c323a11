"""Why a device stood idle: data loader, a wait of the host, a host that launches late, or another stream.

Compares each stretch without work with what the host did meanwhile. Judges nothing.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.step_profile import names
from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import Work
from diagnostics.analysis.step_profile.intervals import Interval, Ruler, union
from diagnostics.evidence.trace.model import Trace

Reason = Literal["data", "sync", "host", "wait"]
DEVICE_NS = 2_000
"""Shorter stretches between two kernels are the device's own."""
CPU_NS = 50_000
"""Of a run on CPU: shorter stretches are the interpreter between two operations."""
_NEAR_NS = 20_000
"""The device drains, and the host's wait for it returns, within that."""


@dataclass(slots=True)
class Gap:
    """A stretch in which neither compute nor copies nor communication ran (ns)."""

    start: int
    end: int
    reason: Reason
    detail: str = ""
    """What the host did: the annotation or operation."""

    @property
    def length(self) -> int:
        """In ns."""
        return self.end - self.start


def find_gaps(trace: Trace, work: Work, covers: Covers, begin: int, end: int) -> list[Gap]:
    """All stretches without work in the window, by start."""
    least = DEVICE_NS if trace.on_device else CPU_NS
    stretches = covers.gaps(begin, end, least)
    if not stretches:
        return []
    loader = _Loader(trace)
    if not trace.on_device:
        return [_on_cpu(gap, loader) for gap in stretches]
    waits = _Waits(trace)
    launches = sorted(zip(trace.device.start, trace.launch))
    starts = [start for start, _ in launches]
    result = []
    for start, until in stretches:
        n = bisect_right(starts, until - 1)
        launch = launches[n][1] if n < len(launches) else -1
        result.append(_on_device(start, until, launch, loader, waits))
    return result


def _on_device(start: int, end: int, launch: int, loader: "_Loader", waits: "_Waits") -> Gap:
    if launch < 0:
        return Gap(start, end, "wait", "")
    if launch <= start:
        return Gap(start, end, "wait", "the next kernel was launched already")
    if loader.share(start, launch) >= 0.5:
        return Gap(start, end, "data", loader.name)
    wait = waits.that_ended(start, launch)
    if wait:
        return Gap(start, end, "sync", wait)
    return Gap(start, end, "host", "")


def _on_cpu(gap: Interval, loader: "_Loader") -> Gap:
    start, end = gap
    if loader.share(start, end) >= 0.5:
        return Gap(start, end, "data", loader.name)
    return Gap(start, end, "host", "")


class _Loader:
    """When the host stood in the data loader."""

    def __init__(self, trace: Trace) -> None:
        marks = trace.marks
        found = [i for i, name in enumerate(marks.name) if names.LOADER.search(trace.names[name])]
        self.name = trace.names[marks.name[found[0]]] if found else ""
        self._ruler = Ruler(union((marks.start[i], marks.end[i]) for i in found))

    def share(self, start: int, end: int) -> float:
        """Of that stretch, 0 to 1."""
        return self._ruler.within(start, end) / (end - start) if end > start else 0.0


class _Waits:
    """When the host waited for the device, and in which operation."""

    def __init__(self, trace: Trace) -> None:
        syncs = trace.syncs
        order = sorted(range(len(syncs)), key=lambda i: syncs.end[i])
        self._trace = trace
        self._order = order
        self._ends = [syncs.end[i] for i in order]
        ops = trace.ops
        wanted = {n for n, name in enumerate(trace.names) if names.SYNC_OPS.match(name)}
        rows = zip(ops.start, ops.end, ops.name, ops.lane) if wanted else ()
        self._ops = sorted(row for row in rows if row[2] in wanted)
        self._op_starts = [op[0] for op in self._ops]

    def that_ended(self, start: int, launch: int) -> str:
        """The wait that held the host while the device drained: it began before the device stood idle and ended after.

        Empty when there was none.
        """
        syncs = self._trace.syncs
        n = bisect_right(self._ends, start - _NEAR_NS)
        while n < len(self._ends) and self._ends[n] <= launch:
            i = self._order[n]
            if syncs.start[i] <= start and syncs.end[i] - syncs.start[i] >= DEVICE_NS:
                return self._operation(i) or self._trace.names[syncs.name[i]]
            n += 1
        return ""

    def _operation(self, sync: int) -> str:
        start, lane = self._trace.syncs.start[sync], self._trace.syncs.lane[sync]
        n = bisect_right(self._op_starts, start)
        for op in self._ops[max(0, n - 8) : n]:
            if op[1] >= start and op[3] == lane:
                return self._trace.names[op[2]]
        return ""
