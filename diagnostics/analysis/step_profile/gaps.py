"""Reasons for an idle device: data loader, host synchronisation, slow launches, host pause, or another stream."""

from bisect import bisect_left, bisect_right
from typing import Literal, get_args

from msgspec import Struct

from diagnostics.analysis.step_profile.breakdown import Covers
from diagnostics.analysis.step_profile.classify import TEXT, Work
from diagnostics.analysis.step_profile.intervals import Ruler, holes, union
from diagnostics.evidence.trace.model import PAUSE_NS, QUIET_NS, HostCopy, HostWork, Trace, host_copy, host_work

Reason = Literal["data", "sync", "host", "pause", "profiler", "wait"]
"""`host`: the host is busy launching; `pause`: it does something else, which is named, or nothing is seen of it;
`profiler`: it serves the profiler."""
DEVICE_NS = 2_000  # Shorter stretches between two kernels are device overhead.
CPU_NS = 50_000  # For a run on CPU, shorter stretches are interpreter overhead between two operations.
CLOCKS_NS = 5_000  # Accuracy to which the clocks of host and device agree.
_LAUNCH_NS = 15_000
"""On an idle device a kernel starts 6 to 14 us after its launch began (measured: V100, A100, MI250)."""
_NEAR_NS = 20_000  # Maximum delay between the device going idle and the return of the host's wait for it.
_MOST = 0.5  # Minimum share of a stretch that one kind of host work must fill to be its reason.
_NEARBY = 64  # Number of events before the end of a stretch that are searched for the one that names it.


class Gap(Struct):
    """A stretch (ns) without compute, copies or communication."""

    start: int
    end: int
    reason: Reason
    detail: str = ""
    """What the host did: the annotation or operation; `kernel_launch` if a launch blocked."""
    work: HostWork = ""
    """Kind of host work in a pause."""
    caller: str = ""
    """The innermost of the user's functions around a pause; empty if stacks are not recorded."""

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.start


def find_gaps(trace: Trace, work: Work, covers: Covers, begin: int, end: int) -> list[Gap]:
    """Return all stretches without work in the window, sorted by start."""
    least = DEVICE_NS if trace.on_device else CPU_NS
    stretches = holes(covers.busy.cover, begin, end, least)
    lanes = {lane for lane, is_memory in zip(trace.launcher, trace.is_memory) if not is_memory}
    lanes = lanes or {lane for _, _, lane, _, _ in work.compute}
    host = _Host(trace, lanes)
    launches = sorted(zip(trace.device.start, trace.launch, trace.launcher, trace.returned, trace.device.name))
    starts = [row[0] for row in launches]
    first_use = {row[4]: row[0] for row in reversed(launches)}
    on_cpu = () if trace.on_device else stretches
    result = [host.gap(start, until, until, -1) or Gap(start, until, "host") for start, until in on_cpu]
    for start, until in stretches if trace.on_device else ():
        n = bisect_right(starts, until - 1)
        # Behind the last work, nothing is launched until the end.
        launch, thread, returned, name = launches[n][1:] if n < len(launches) else (until, launches[-1][2], until, -1)
        if min(returned, until) - max(launch, start) >= max(PAUSE_NS, _MOST * (until - start)):
            # No launch alone takes so long while the device idles: its kernel is loaded first, unless it ran before.
            kind: HostWork = "kernel_loading" if first_use[name] == starts[n] else ""
            result.append(host.gap(start, until, until, thread) or Gap(start, until, "pause", "kernel_launch", kind))
        elif returned <= start and launch < until - _LAUNCH_NS:
            result.append(Gap(start, until, "wait"))
        elif (gap := host.gap(start, until, launch, thread)) is not None:
            result.append(gap)
        else:
            wait, began, over = host.that_ended(start, launch)
            if host.quiet(max(start, over), launch) >= _MOST * (until - start):
                result.append(Gap(start, until, "pause"))
                continue
            # Without the wait, the host would be ahead by as long as it took; the rest of the stretch is its own work.
            border = min(until, start + over - began)
            result += [Gap(start, border, "sync", wait)] if wait else []
            result += [Gap(border, until, "host")] if border < until else []
    _name_pauses(result, trace, lanes)
    return result


def _name_pauses(gaps: list[Gap], trace: Trace, lanes: set[int]) -> None:
    """Name what a thread that launches does in pauses: the innermost annotation, operation or function around most."""
    pauses = [gap for gap in gaps if gap.reason == "pause"]
    starts, least = [gap.start for gap in pauses], min((gap.length for gap in pauses), default=0) * _MOST
    around: dict[int, list[tuple[int, str, bool]]] = {start: [] for start in starts}
    for spans in (trace.ops, trace.syncs, trace.marks, trace.functions) if pauses else ():
        for start, end, name, lane in zip(spans.start, spans.end, spans.name, spans.lane):
            if end - start < least or lane not in lanes or TEXT["step"].match(trace.names[name]):
                continue
            for gap in pauses[max(0, bisect_right(starts, start) - 1) : bisect_left(starts, end)]:
                if min(end, gap.end) - max(start, gap.start) >= _MOST * gap.length:
                    around[gap.start].append((end - start, trace.names[name], spans is trace.functions))
    for gap in pauses:
        rows = sorted(around[gap.start])  # A function that takes over twice as long does more than to pause.
        names = (name for length, name, is_function in rows if not is_function or length * _MOST <= gap.length)
        gap.detail = gap.detail or next(names, "")
        own = (name for _, name, is_function in rows if is_function and not TEXT["library"].search(name))
        gap.caller = next(own, "")


class _Host:
    """What the host does: its work by kind, how busy it is with launches, and its waits for the device."""

    def __init__(self, trace: Trace, lanes: set[int]) -> None:
        kinds = [host_work(name) for name in trace.names]
        spans: dict[tuple[HostWork, int], list[tuple[int, int, int]]] = {}
        for start, end, name, lane in zip(trace.marks.start, trace.marks.end, trace.marks.name, trace.marks.lane):
            if kind := kinds[name]:
                # These stop all launches; other work stops only those of its own thread.
                everywhere = kind in ("data", "garbage_collection", "kernel_loading", "profiler")
                spans.setdefault((kind, -1 if everywhere else lane), []).append((start, end, name))
        self._trace = trace
        self._spans = {key: sorted(rows) for key, rows in spans.items()}
        order = sorted(spans, key=lambda key: get_args(HostWork).index(key[0]))
        self._rulers = {key: Ruler(union((start, end) for start, end, _ in spans[key])) for key in order}
        self._lanes = lanes
        busy = zip(trace.activity.start, trace.activity.end, trace.activity.lane)
        # A stretch of activity lasts until the next one could have begun.
        self._active = Ruler(union((start, end + QUIET_NS) for start, end, lane in busy if lane in lanes))
        ops, syncs = trace.ops, trace.syncs
        # Also the call of a copy to pageable memory returns only once the device has copied.
        reads = [host_copy(name) in (HostCopy(False, "pageable"), HostCopy(False, "")) for name in trace.names]
        copies = zip(trace.returned, trace.launch, trace.device.name, trace.launcher, trace.device.end)
        waits = [row[:4] for row in copies if reads[row[2]] and row[0] >= row[4] - CLOCKS_NS]
        self._syncs = sorted([*zip(syncs.end, syncs.start, syncs.name, syncs.lane), *waits])
        sync_names = {n for n, name in enumerate(trace.names) if TEXT["sync_ops"].match(name)}
        self._ops = sorted(row for row in zip(ops.start, ops.end, ops.name, ops.lane) if row[2] in sync_names)

    def quiet(self, start: int, end: int) -> int:
        """Return for how many ns the threads that launch kernels neither run operations nor calls."""
        return max(0, end - start) - self._active.within(start, end)

    def gap(self, start: int, end: int, launch: int, thread: int) -> Gap | None:
        """Return the stretch and its reason, if one kind of work fills most of the time until the launch ending it."""
        filled = {
            key: ruler.within(start, launch)
            for key, ruler in self._rulers.items()
            if key[1] in (-1, thread) or (thread < 0 and key[1] in self._lanes)
        }
        key = max(filled, key=lambda key: filled[key], default=None)  # Of equals, the first.
        if key is None or filled[key] < (least := max(_MOST * (launch - start), 1)):
            return None
        kind = key[0]
        if kind == "profiler" and self.quiet(start, launch) < least:
            return None  # Its thread flushes buffers beside a host that goes on.
        rows = self._spans[key]
        after = bisect_left(rows, (launch,))
        rows = [row for row in rows[max(0, after - _NEARBY) : after] if row[1] > start] or rows[:1]
        longest = max(rows, key=lambda row: (min(row[1], launch) - max(row[0], start), row[1] - row[0]))
        detail = self._trace.names[longest[2]]
        reason: Reason = kind if kind in ("data", "profiler") else "pause"
        return Gap(start, end, reason, detail, "" if kind == "data" else kind)

    def that_ended(self, start: int, launch: int) -> tuple[str, int, int]:
        """Return the wait that blocked the host from before the device went idle until after: name, start and end."""
        n = bisect_left(self._syncs, (start - _NEAR_NS + 1,))
        while n < len(self._syncs) and self._syncs[n][0] <= launch:
            end, began, name, lane = self._syncs[n]
            if began <= start and end - began >= DEVICE_NS:
                at = bisect_left(self._ops, (began + 1,))
                near = self._ops[max(0, at - _NEARBY) : at]
                around = (op[2] for op in near if op[1] >= began and op[3] == lane)
                return self._trace.names[next(around, name)], began, end
            n += 1
        return "", start, start
