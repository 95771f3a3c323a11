"""Reasons for an idle device: data loader, host synchronisation, slow launches, host pause, or another stream."""

from bisect import bisect_left, bisect_right
from typing import Literal

from msgspec import Struct

from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import TEXT, Work
from diagnostics.analysis.step_profile.intervals import Ruler, union
from diagnostics.evidence.trace.model import HostWork, Trace, host_work

Reason = Literal["data", "sync", "host", "pause", "wait"]
"""`host`: late launches, spread over many kernels; `pause`: the host does something else, which is named, or a few
long stretches hold nearly all of the time without launches."""
DEVICE_NS = 2_000  # Shorter stretches between two kernels are device overhead.
CPU_NS = 50_000  # For a run on CPU, shorter stretches are interpreter overhead between two operations.
_LAUNCH_NS = 15_000
"""On an idle device a kernel starts 6 to 14 us after its launch began (measured: V100, A100, MI250)."""
_NEAR_NS = 20_000  # Maximum delay between the device going idle and the return of the host's wait for it.
_MOST = 0.5  # Minimum share of a stretch that one kind of host work must fill to be its reason.
_NEARBY = 64  # Number of events before the end of a stretch that are searched for the one that names it.
_PAUSES = 5  # A convention: the number of longest gaps that the report lists.
_PAUSE_SHARE = 0.7  # When so many gaps hold that share of a step's time without launches, they are pauses.
_BREAK = 8.0  # Ratio of a gap to the next shorter one from which the longer ones are pauses, whatever else is idle.
PAUSE_NS = 2_000_000  # Minimum length of a pause without a known name: launches take 5 to 100 us.


class Gap(Struct):
    """A stretch (ns) without compute, copies or communication."""

    start: int
    end: int
    reason: Reason
    detail: str = ""
    """What the host did: the annotation or operation; `kernel_launch` if a launch blocked."""
    work: HostWork = ""
    """Kind of host work in a pause."""

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.start


def find_gaps(trace: Trace, work: Work, covers: Covers, begin: int, end: int) -> list[Gap]:
    """Return all stretches without work in the window, sorted by start."""
    least = DEVICE_NS if trace.on_device else CPU_NS
    stretches = covers.gaps(begin, end, least)
    if not stretches:
        return []
    host = _HostWork(trace)
    if not trace.on_device:
        return [host.gap(start, until, until, -1) or Gap(start, until, "host") for start, until in stretches]
    waits = _Waits(trace)
    launches = sorted(zip(trace.device.start, trace.launch, trace.launcher, trace.returned, trace.device.name))
    starts = [row[0] for row in launches]
    first_use = {row[4]: row[0] for row in reversed(launches)}
    result = []
    for start, until in stretches:
        n = bisect_right(starts, until - 1)
        launch, thread, returned, name = launches[n][1:] if n < len(launches) else (-1, -1, -1, -1)
        if min(returned, until) - max(launch, start) >= max(PAUSE_NS, _MOST * (until - start)):
            # No launch alone takes so long while the device idles: its kernel is loaded first, unless it ran before.
            is_new = first_use[name] == starts[n]
            result.append(Gap(start, until, "pause", "kernel_launch", "kernel_loading" if is_new else ""))
        elif returned <= start and launch < until - _LAUNCH_NS:
            result.append(Gap(start, until, "wait"))
        elif (gap := host.gap(start, until, launch, thread)) is not None:
            result.append(gap)
        else:
            # Without the wait, the host would be ahead by as long as it took; the rest of the stretch is its own work.
            wait, waited = waits.that_ended(start, launch)
            border = min(until, start + waited)
            result += [Gap(start, border, "sync", wait)] if wait else []
            result += [Gap(border, until, "host")] if border < until else []
    return result


def mark_pauses(gaps: list[Gap], trace: Trace) -> None:
    """Reclassify a few late launches with most of the time, or far longer than all others, as pauses; name them."""
    late = sorted((gap for gap in gaps if gap.reason == "host"), key=lambda gap: (-gap.length, gap.start))
    longest = [gap for gap in late[:_PAUSES] if gap.length >= PAUSE_NS]
    if sum(gap.length for gap in longest) < _PAUSE_SHARE * sum(gap.length for gap in late):
        breaks = (n for n, (gap, after) in enumerate(zip(longest, late[1:]), 1) if gap.length >= _BREAK * after.length)
        longest = longest[: max(breaks, default=0)]
    if not longest:
        return
    least = min(gap.length for gap in longest) // 2
    innermost: dict[int, int] = {}
    for spans in (trace.ops, trace.marks):
        for start, end, name in zip(spans.start, spans.end, spans.name):
            if end - start < least or TEXT["step"].match(trace.names[name]):
                continue
            for gap in longest:
                covered = min(end, gap.end) - max(start, gap.start)
                if 2 * covered >= gap.length and end - start < innermost.get(gap.start, end - start + 1):
                    innermost[gap.start] = end - start
                    gap.detail = trace.names[name]
    for gap in longest:
        gap.reason = "pause"


class _HostWork:
    """Intervals and events of the host's work, by kind."""

    def __init__(self, trace: Trace) -> None:
        kinds = [host_work(name) for name in trace.names]
        spans: dict[tuple[HostWork, int], list[tuple[int, int, int]]] = {}
        for start, end, name, lane in zip(trace.marks.start, trace.marks.end, trace.marks.name, trace.marks.lane):
            if kind := kinds[name]:
                # Loading data and collecting garbage stop all launches; other work stops only those of its own thread.
                everywhere = kind in ("data", "garbage_collection")
                spans.setdefault((kind, -1 if everywhere else lane), []).append((start, end, name))
        self._names = trace.names
        self._spans = {key: sorted(rows) for key, rows in spans.items()}
        self._rulers = {key: Ruler(union((start, end) for start, end, _ in rows)) for key, rows in spans.items()}

    def gap(self, start: int, end: int, launch: int, thread: int) -> Gap | None:
        """Return the stretch and its reason, if one kind of work fills most of the time until the launch ending it."""
        filled = {
            key: ruler.within(start, launch)
            for key, ruler in self._rulers.items()
            if key[1] in (-1, thread) or thread < 0
        }
        # Of two nested events that fill the same time, waiting for data is the actionable one.
        key = max(filled, key=lambda key: (filled[key], key[0] == "data"), default=None)
        if key is None or filled[key] < max(_MOST * (launch - start), 1):
            return None
        rows = self._spans[key]
        after = bisect_left(rows, (launch,))
        rows = [row for row in rows[max(0, after - _NEARBY) : after] if row[1] > start] or rows[:1]
        longest = max(rows, key=lambda row: min(row[1], launch) - max(row[0], start))
        detail = self._names[longest[2]]
        return Gap(start, end, "data", detail) if key[0] == "data" else Gap(start, end, "pause", detail, key[0])


class _Waits:
    """Intervals in which the host waited for the device, and the operation of each."""

    def __init__(self, trace: Trace) -> None:
        syncs = trace.syncs
        order = sorted(range(len(syncs)), key=lambda i: syncs.end[i])
        self._trace = trace
        self._order = order
        self._ends = [syncs.end[i] for i in order]
        ops = trace.ops
        sync_names = {n for n, name in enumerate(trace.names) if TEXT["sync_ops"].match(name)}
        rows = zip(ops.start, ops.end, ops.name, ops.lane) if sync_names else ()
        self._ops = sorted(row for row in rows if row[2] in sync_names)
        self._op_starts = [op[0] for op in self._ops]

    def that_ended(self, start: int, launch: int) -> tuple[str, int]:
        """Return the wait that blocked the host from before the device went idle until after, and its ns; or "", 0."""
        syncs = self._trace.syncs
        n = bisect_right(self._ends, start - _NEAR_NS)
        while n < len(self._ends) and self._ends[n] <= launch:
            i = self._order[n]
            began = syncs.start[i]
            if began <= start and syncs.end[i] - began >= DEVICE_NS:
                at = bisect_right(self._op_starts, began)
                near = self._ops[max(0, at - _NEARBY) : at]
                around = (op for op in near if op[1] >= began and op[3] == syncs.lane[i])
                return self._trace.names[next((op[2] for op in around), syncs.name[i])], syncs.end[i] - began
            n += 1
        return "", 0
