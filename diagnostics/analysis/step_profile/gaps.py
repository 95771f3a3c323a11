"""Why a device stood idle: data loader, a wait of the host, a host that launches late or pauses, or another stream.

Compares each stretch without work with what the host did meanwhile. No verdicts.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.step_profile import names
from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import Work
from diagnostics.analysis.step_profile.intervals import Interval, Ruler, union
from diagnostics.evidence.trace.model import Trace

Reason = Literal["data", "sync", "host", "pause", "wait"]
"""`host`: late launches, spread over many kernels; `pause`: a few long stretches that hold nearly all of them."""
DEVICE_NS = 2_000
"""Shorter stretches between two kernels are the device's own."""
CPU_NS = 50_000
"""Of a run on CPU: shorter stretches are the interpreter between two operations."""
_NEAR_NS = 20_000
"""The device drains, and the host's wait for it returns, within that."""


_PAUSES = 5
_PAUSE_SHARE = 0.7
"""When so many gaps hold that share of a step's time without launches, they are pauses: of 12 real traces with much
such time, 6 had 73 to 100 % of it in five gaps, and none of those was limited by its launches."""
_PAUSE_NS = 1_000_000
"""No pause is shorter: launches take 5 to 100 us."""


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


def mark_pauses(gaps: list[Gap], trace: Trace) -> None:
    """Turn late launches into pauses where a few gaps hold nearly all of the time, and name what lies there.

    Args:
        gaps: of one step of a device.
        trace: where the host's operations and annotations stand.
    """
    late = [gap for gap in gaps if gap.reason == "host"]
    longest = sorted(late, key=lambda gap: (-gap.length, gap.start))[:_PAUSES]
    longest = [gap for gap in longest if gap.length >= _PAUSE_NS]
    if not longest or sum(gap.length for gap in longest) < _PAUSE_SHARE * sum(gap.length for gap in late):
        return
    least = min(gap.length for gap in longest) // 2
    innermost: dict[int, int] = {}
    for spans in (trace.ops, trace.marks):
        for start, end, name in zip(spans.start, spans.end, spans.name):
            if end - start < least or names.STEP.match(trace.names[name]):
                continue
            for gap in longest:
                covered = min(end, gap.end) - max(start, gap.start)
                if 2 * covered >= gap.length and end - start < innermost.get(gap.start, end - start + 1):
                    innermost[gap.start] = end - start
                    gap.detail = trace.names[name]
    for gap in longest:
        gap.reason = "pause"


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
        """Return the wait that held the host while the device drained.

        The wait began before the device became idle and ended afterwards. The result is empty if there was none.
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
