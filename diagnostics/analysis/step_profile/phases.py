"""Steps, micro-batches and phases of one rank: the end of each step on the device, and when backward runs.

On the device a step begins with the first work launched in it. Backward is the work launched by autograd's operations.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Literal

from msgspec import Struct, field

from diagnostics.analysis.step_profile.classify import AUTOGRAD, TEXT, Work
from diagnostics.analysis.step_profile.intervals import Interval, Ruler, union
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.trace.model import Trace

Phase = Literal["forward", "backward", "after", "optimizer", ""]
_SEPARATES = 0.1
"""Minimum forward work, as a share of all of it, between two backward stretches of separate micro-batches."""


_AT_ONCE_NS = 100_000  # Maximum delay after its launch of work that has nothing to wait for.


class Backward(Struct):
    """One backward pass, on the host's and on the device's clock (ns)."""

    host: Interval
    device: Interval


class Step(Struct):
    """One step, or the whole window if the trace marks none."""

    number: int | None
    host: Interval
    device: Interval
    backwards: list[Backward] = field(default_factory=list)
    optimizer_ns: int | None = None
    """Time at which the host enters the optimizer; None if not marked."""
    updated: int = 0
    """Number of backward passes with an optimizer step before the next one."""
    autograd: frozenset[int] = frozenset()
    """Host threads that run only backward."""

    def phase(self, host_ns: int, thread: int = -1) -> tuple[Phase, int]:
        """Return phase and micro-batch (from 0) of work issued at `host_ns`; phase `""` if no backward is visible."""
        if not self.backwards or host_ns < 0:
            return "", 0
        if self.optimizer_ns is not None and host_ns >= self.optimizer_ns:
            return "optimizer", len(self.backwards) - 1
        for n, backward in enumerate(self.backwards):
            if host_ns < backward.host[0]:
                return ("backward" if thread in self.autograd else "forward"), n
            if host_ns <= backward.host[1]:
                return "backward", n
        return ("backward" if thread in self.autograd else "after"), len(self.backwards) - 1


def find_steps(trace: Trace, work: Work) -> list[Step]:
    """Return the steps by time, at least one: the device work from the first mark on, and the host's time around it."""
    begin, end = window(trace, work)
    hosts = _marked(trace)
    if not hosts:
        steps = [Step(None, (trace.first_ns, trace.last_ns), (begin, end))]
    else:
        borders = _borders(trace, [host[0] for _, host in hosts], begin, end)
        steps = [Step(number, host, (borders[n], borders[n + 1])) for n, (number, host) in enumerate(hosts)]
        steps = [step for step in steps if step.device[1] > step.device[0]] or steps[:1]
        if trace.on_device:
            first, last = steps[0], steps[-1]
            # The device idled until the first work if that began as it was launched; else it had work from before.
            start, launch, returned = min(zip(trace.device.start, trace.launch, trace.returned, strict=True))
            if first.host[0] <= launch and start <= max(launch, returned) + _AT_ONCE_NS:
                first.device = min(first.host[0], first.device[0]), first.device[1]
            last.device = last.device[0], max(last.host[1], last.device[1])
    _find_backwards(trace, work, steps)
    return steps


def window(trace: Trace, work: Work) -> Interval:
    """Return the window from the first to the last work; for a run on CPU, the marked steps."""
    if trace.on_device:
        return min(trace.device.start), max(trace.device.end)
    hosts = _marked(trace)
    if hosts:
        return hosts[0][1][0], hosts[-1][1][1]
    spans = [row[:2] for row in work.compute] + [(call.start, call.end) for call in work.calls]
    return min((start for start, _ in spans), default=0), max((end for _, end in spans), default=0)


def _marked(trace: Trace) -> list[tuple[int, Interval]]:
    """Return (number, host interval) of each profiler step, ordered by time."""
    marks = trace.marks
    numbers: dict[Interval, int] = {}
    for i, name in enumerate(marks.name):
        match = TEXT["step"].match(trace.names[name])
        if match:
            numbers.setdefault((marks.start[i], marks.end[i]), int(match[1]))
    return [(number, host) for host, number in sorted(numbers.items())]


def _borders(trace: Trace, starts: list[int], begin: int, end: int) -> list[int]:
    """Return the start of each step on the device, and the end of the window."""
    if not trace.on_device:
        return [*starts, end]
    first = [end] * len(starts)
    for start, launch in zip(trace.device.start, trace.launch):
        n = bisect_right(starts, launch if launch >= 0 else start) - 1
        if n >= 0 and start < first[n]:
            first[n] = start
    borders = [max(begin, border) for border in first]
    for n in range(len(borders) - 1, 0, -1):
        borders[n - 1] = min(borders[n - 1], borders[n])
    return [*borders, end]


def _find_backwards(trace: Trace, work: Work, steps: list[Step]) -> None:
    """Fill in the backward passes and the optimizer of every step."""
    rulers = _autograd(trace)
    is_optimizer = [bool(TEXT["optimizer"].search(name)) for name in trace.names]
    optimizers = sorted(start for start, name in zip(trace.marks.start, trace.marks.name) if is_optimizer[name])
    # The forward passes, by the name of their marks; the most frequent one counts.
    marks = ((trace.names[name], start) for name, start in zip(trace.marks.name, trace.marks.start, strict=True))
    begun = grouped((text, start) for text, start in marks if TEXT["forward"].match(text))
    forwards = sorted(max(((len(times), times) for times in begun.values()), default=(0, []))[1])
    starts = [step.host[0] for step in steps]
    everywhere = Ruler(union(span for ruler in rulers.values() for span in ruler.cover))
    launched: list[list[tuple[int, bool, int, int]]] = [[] for _ in steps]
    mixed: set[int] = set()
    borders = {thread: [border for span in ruler.cover for border in span] for thread, ruler in rulers.items()}
    for start, end, _, launch, thread in work.compute:
        n = bisect_right(starts, launch) - 1
        if launch < 0 or n < 0:
            continue
        # Behind a start and before its end there is an odd number of borders to the left.
        backward = thread in borders and bisect_right(borders[thread], launch) % 2 == 1
        launched[n].append((launch, backward, start, end))
        if not backward:
            mixed.add(thread)
    for n, step in enumerate(steps):
        limit = starts[n + 1] if n + 1 < len(steps) else step.host[1] + 1
        inside = [time for time in forwards if step.host[0] <= time < limit]
        rows = sorted(launched[n])
        others = [row[0] for row in rows if not row[1]]
        step.backwards = [_backward(run, others, limit, everywhere) for run in _runs(rows, inside)]
        step.autograd = frozenset(rulers) - mixed
        if step.backwards:
            last = step.backwards[-1].host[1]
            step.optimizer_ns = next((time for time in optimizers if last <= time < limit), None)
            entered = [bisect_left(optimizers, begin) for begin in (*(call.host[0] for call in step.backwards), limit)]
            step.updated = sum(before < after for before, after in pairwise(entered))


def _autograd(trace: Trace) -> dict[int, Ruler]:
    """Return by host thread when it ran autograd's operations or was in a marked backward."""
    by_thread: dict[int, list[Interval]] = {}
    is_autograd = [name.startswith(AUTOGRAD) for name in trace.names]
    ops, marks = trace.ops, trace.marks
    for i, name in enumerate(ops.name):
        if is_autograd[name]:
            by_thread.setdefault(ops.lane[i], []).append((ops.start[i], ops.end[i]))
    for i, name in enumerate(marks.name):
        if TEXT["backward_mark"].match(trace.names[name]):
            by_thread.setdefault(marks.lane[i], []).append((marks.start[i], marks.end[i]))
    return {lane: Ruler(union(spans)) for lane, spans in by_thread.items()}


def _runs(launched: list[tuple[int, bool, int, int]], forwards: list[int]) -> list[list[tuple[int, bool, int, int]]]:
    """Return the backward work of a step, split where a forward pass lies in between."""
    ahead = sum(end - start for _, backward, start, end in launched if not backward)
    runs: list[list[tuple[int, bool, int, int]]] = []
    between = 0
    for row in launched:
        launch, backward, start, end = row
        if not backward:
            between += end - start
            continue
        if runs and forwards:
            is_new = bisect_right(forwards, launch) > bisect_right(forwards, runs[-1][-1][0])
        else:
            is_new = not runs or between > _SEPARATES * ahead
        if is_new:
            runs.append([])
        runs[-1].append(row)
        between = 0
    return runs


def _backward(run: list[tuple[int, bool, int, int]], others: list[int], limit: int, autograd: Ruler) -> Backward:
    n = bisect_right(others, run[-1][0])
    border = others[n] if n < len(others) else limit
    last = autograd.last_end(border)
    first = autograd.start_of(run[0][0])
    return Backward(
        host=(run[0][0] if first is None else first, max(run[-1][0], min(last or 0, border - 1))),
        device=(min(row[2] for row in run), max(row[3] for row in run)),
    )
