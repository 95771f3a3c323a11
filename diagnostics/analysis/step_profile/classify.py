"""Separates communication from compute in one rank's trace, by structure first and by name last.

A kernel communicates when the trace links a collective to it, when it was launched inside a collective's own
annotation, inside a marked region (on another stream than compute), or when its name is known to. Of a run
on CPU the spans of gloo's threads are the communication. Judges nothing.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct, field

from diagnostics.analysis.step_profile.intervals import Interval, subtract, total, union
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import COMMUNICATION
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.trace.model import Message, Trace, collective_word, host_work


class Call(Struct):
    """One collective as it ran on this rank; times in ns since the trace's base."""

    start: int
    end: int
    message: Message
    name: str
    lane: int
    issued: int = -1
    """Time at which the host issued it; -1 if unknown."""
    thread: int = -1
    """Lane of the host thread that issued it; -1 if unknown."""
    why: str = "name"
    """How it was recognised: `args`, `annotation`, `region` or `name`."""

    @property
    def duration(self) -> int:
        """Duration in ns."""
        return self.end - self.start


class Work(Struct):
    """One rank's device time (or host time, for a run on CPU), by kind."""

    calls: list[Call] = field(default_factory=list)
    """Collectives, sorted by start."""
    compute: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Tuples (start, end, lane, launch or -1, launching lane or -1), sorted by start."""
    memory: list[Interval] = field(default_factory=list)
    """Copies and fills."""
    operations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """On CPU: number and ns of the operations in `compute`, by name."""
    compute_lane: int = -1
    """The stream that computes most; -1 on CPU."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Kernels on a communication stream that could not be classified; counted as compute."""
    fused: Counter[str] = field(default_factory=Counter)
    """Kernels that both communicate and compute; counted as compute."""


TEXT = patterns_beside(__file__)
"""Patterns for names of kernels, annotations and operations that structure does not classify."""
AUTOGRAD = "autograd::engine::evaluate_function"
_REMEMBERED = 4096
"""Maximum length of a kernel name, in characters, whose classification is cached."""
_OPEN = 256
"""Maximum number of issued calls that may be outstanding at once."""

_Range = tuple[int, int, Message, str]
"""Start, end, the collective, and how it was recognised."""


def classify(trace: Trace) -> Work:
    """Return all work of the rank."""
    work = _on_device(trace) if trace.on_device else _on_cpu(trace)
    work.calls.sort(key=lambda call: (call.start, call.end, call.message.op))
    work.compute.sort()
    return work


def _on_device(trace: Trace) -> Work:
    work = Work()
    used = set(trace.device.name)
    kind_of = (_kind_of_name.__wrapped__, _kind_of_name)  # Names that are too long are not cached.
    kinds = [kind_of[len(name) <= _REMEMBERED](name) if n in used else "" for n, name in enumerate(trace.names)]
    work.compute_lane = _compute_lane(trace, kinds)
    ranges = _ranges(trace)
    device, messages = trace.device, trace.messages
    lanes_of_calls = set()
    doubtful = []
    for i, (start, end, name, lane, memory, launch, thread) in enumerate(
        zip(device.start, device.end, device.name, device.lane, trace.is_memory, trace.launch, trace.launcher)
    ):
        if memory:
            work.memory.append((start, end))
            continue
        kind = kinds[name]
        if kind == "compute" and i not in messages:
            work.compute.append((start, end, lane, launch, thread))
            continue
        message, why = messages.get(i), "args"
        if message is None and launch >= 0 and thread in ranges:
            rows = ranges[thread]
            at = bisect_right(rows, launch, key=lambda row: row[0]) - 1
            # A marked region counts only for work outside the compute stream.
            if at >= 0 and launch < rows[at][1] and (rows[at][3] != "region" or lane != work.compute_lane):
                message, why = rows[at][2:]
        if kind == "communication" and message is None:
            message, why = Message("collective"), "name"
        if message is not None and message.op == "collective":
            message = message._replace(op=collective_word(trace.names[name]))
        if message is not None and kind != "fused":
            work.calls.append(Call(start, end, message, trace.names[name], lane, launch, thread, why))
            lanes_of_calls.add(lane)
            continue
        if kind == "fused":
            work.fused[trace.names[name]] += 1
        elif kind != "compute":
            doubtful.append((lane, name))
        work.compute.append((start, end, lane, launch, thread))
    lanes_of_calls.discard(work.compute_lane)
    for lane, name in doubtful:
        if lane in lanes_of_calls:
            work.unknown[trace.names[name]] += 1
    return work


@lru_cache(maxsize=1024)
def _kind_of_name(name: str) -> str:
    """Return the kind of a kernel by name. Cached: the ranks of a job run the same kernels, and names are long."""
    lower = name.lower()
    if TEXT["fused"].search(lower):
        return "fused"
    if TEXT["communication"].search(lower):
        return "communication"
    return "compute" if TEXT["compute"].search(lower) else ""


def _compute_lane(trace: Trace, kinds: list[str]) -> int:
    busy: Counter[int] = Counter()
    device = trace.device
    aside = bytearray(trace.is_memory)
    for i in trace.messages:
        aside[i] = 1
    for start, end, name, lane, other in zip(device.start, device.end, device.name, device.lane, aside):
        if not other and kinds[name] != "communication":
            busy[lane] += end - start
    return max(busy, key=lambda lane: (busy[lane], -lane)) if busy else -1


def _ranges(trace: Trace) -> dict[int, list[_Range]]:
    """Return the intervals of each host thread in which a collective is launched, ascending."""
    by_lane: dict[int, list[_Range]] = {}
    rows = [(trace.ops, i, message, "args") for i, message in trace.op_messages.items()]
    rows += [(trace.marks, i, message, "annotation") for i, message in trace.mark_messages.items()]
    rows += [(trace.marks, i, message, "region") for i, message in _regions(trace)]
    for spans, i, message, why in rows:
        by_lane.setdefault(spans.lane[i], []).append((spans.start[i], spans.end[i], message, why))
    return {lane: _flat(ranges) for lane, ranges in by_lane.items()}


def _regions(trace: Trace) -> Iterator[tuple[int, Message]]:
    for i, name in enumerate(trace.marks.name):
        if match := COMMUNICATION.fullmatch(trace.names[name]):
            yield i, Message(collective_word(match[1]), int(match[2]), "byte", match[3])


def _flat(ranges: list[_Range]) -> list[_Range]:
    """Flatten nested ranges to the most informative one: `record_param_comms`, then an annotation, then a region."""
    order = {"args": 0, "annotation": 1, "region": 2}

    def ignorance(row: _Range) -> tuple[bool, bool, int]:
        return row[2].op == "collective", not row[2].elements, order[row[3]]

    flat: list[_Range] = []
    for row in sorted(ranges, key=lambda row: (row[0], -row[1])):
        if not flat or row[0] >= flat[-1][1]:
            flat.append(row)
        elif ignorance(row) < ignorance(flat[-1]):
            flat[-1] = (*flat[-1][:2], *row[2:])
    return flat


def _on_cpu(trace: Trace) -> Work:
    work = Work()
    marks, ops = trace.marks, trace.ops
    issues = _issues(trace)
    for i in sorted(trace.mark_messages, key=lambda i: (marks.start[i], marks.end[i])):
        message, name = trace.mark_messages[i], trace.names[marks.name[i]]
        call = Call(marks.start[i], marks.end[i], message, name, marks.lane[i], why="annotation")
        _match_issue(call, issues)
        work.calls.append(call)
    collective = [bool(TEXT["collective"].match(name)) for name in trace.names]
    is_work = [not is_one and name != "record_param_comms" for is_one, name in zip(collective, trace.names)]
    starts = sorted(zip(ops.start, ops.name, ops.lane))
    issued = grouped((lane, start) for start, index, lane in starts if collective[index])
    # The backend's own threads; spans of send and recv are on the thread that issued them, until it waits for them.
    lanes = {marks.lane[i] for i in trace.mark_messages} - issued.keys()
    rows = zip(marks.lane, marks.start, marks.end, marks.name)  # The operations of a compilation compute nothing.
    compiling = [row[:3] for row in rows if host_work(trace.names[row[3]]) == "recompilation"]
    compiled = {lane: union(row[1:] for row in compiling if row[0] == lane) for lane, _, _ in compiling}
    top: dict[int, tuple[int, int]] = {}
    for start, end, index, lane in sorted(zip(ops.start, ops.end, ops.name, ops.lane), key=lambda o: (o[0], -o[1])):
        if lane in lanes or not is_work[index]:
            continue
        last, waits = top.get(lane), issued.get(lane, ())
        at = bisect_left(waits, start)
        if at < len(waits) and waits[at] < end:
            continue  # An autograd function around a collective or a wait for one: only its contents count.
        if last is None or start >= last[1]:  # outermost operations only
            top[lane] = (start, end)
            parts = subtract([(start, end)], compiled[lane]) if lane in compiled else [(start, end)]
            work.compute += [(begin, until, lane, begin, lane) for begin, until in parts]
            count, ns = work.operations.get(trace.names[index], (0, 0))
            work.operations[trace.names[index]] = count + 1, ns + total(parts)
    return work


def _issues(trace: Trace) -> list[tuple[int, int, Message]]:
    """Return (time, lane, message) of every call issued by the host, by time; dtk's regions know bytes and group."""
    issues: list[tuple[int, int, Message]] = []
    ops, marks = trace.ops, trace.marks
    regions = sorted((marks.start[i], marks.end[i], marks.lane[i], message) for i, message in _regions(trace))
    inside = set()
    for start, index, lane in sorted(zip(ops.start, ops.name, ops.lane)):
        text = trace.names[index]
        if not TEXT["issue"].match(text):
            continue
        message = Message(collective_word(text))
        n = bisect_left(regions, (start + 1,)) - 1
        if n >= 0 and start <= regions[n][1] and regions[n][3].op == message.op:
            message = regions[n][3]
            inside.add(n)
        issues.append((start, lane, message))
    rest = [(start, lane, message) for n, (start, _, lane, message) in enumerate(regions) if n not in inside]
    return sorted(issues + rest, key=lambda issue: issue[0])


def _match_issue(call: Call, issues: list[tuple[int, int, Message]]) -> None:
    """Match the call to the first open issue of its operation, add its details, and remove it from `issues`."""
    own = call.message
    for n, (time, lane, issued) in enumerate(issues[:_OPEN]):
        if time > call.end:
            return
        # Gloo implements reduce_scatter as an all_reduce of the whole input.
        if issued.op != own.op and not (issued.op == "reduce_scatter" and own.op == "all_reduce"):
            continue
        reduces = issued.op in ("all_reduce", "reduce_scatter")
        if reduces and issued.size_bytes and own.size_bytes and issued.size_bytes != own.size_bytes:
            continue
        call.issued, call.thread = time, lane
        call.message = issued if issued.elements and not (reduces and own.elements) else own._replace(
            op=issued.op, group=issued.group)  # fmt: skip
        del issues[n]
        return
