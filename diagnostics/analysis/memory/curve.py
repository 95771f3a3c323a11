"""Live bytes over time from the profiler's allocations: the peak, what was alive at it, and what each step leaks."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.model import Frame
from diagnostics.evidence.trace.memory_marks import MAX_EVENTS, STEP, MemoryEvent, Span, TraceMarks, step_number

_PHASES = patterns_beside(__file__)
"""Phase -> annotations that name it, the most specific phase first."""
_CPU = 0  # c10::DeviceType::CPU.
_HELD_A_WHILE = frozenset({"gather", "reduce", "checkpoint", "data"})
"""Phases whose buffers outlive a step by design: collectives' work objects, asynchronous saves, prefetched batches."""


class Allocation(Struct):
    """One block of memory allocated within the window."""

    size_bytes: int
    start_us: float
    step: int | None
    phase: str
    """`forward`, `backward`, `gather`, `reduce`, `optimizer`, `checkpoint`, `evaluation`, `clip`, ... or `step`."""
    region: str
    """Innermost open annotation."""
    end_us: float | None = None
    """Time of release; None if alive at the end of the window."""
    gathered: bool = False
    """Whether it is the output of a gather called by user code."""
    lent: bool = False
    """Whether another collective reads or writes it: backends keep such buffers for a while (gloo's work objects)."""
    sent: bool = False
    """Whether it is the input of a reduce_scatter, whose output holds gradients."""
    thread: int = 0
    """Host thread of the allocation."""
    backend: bool = False
    """Whether a collective allocated it on the host, as gloo's copies are; their number depends on timing."""


class Curve(Struct):
    """One rank's memory on its device over the profiled window."""

    device_type: int
    baseline_bytes: int | None
    """Bytes allocated before the window; None if the allocator does not record them (CPU)."""
    held_bytes: int = 0
    """Bytes of tensors before the window, as far as the recorder saw them; 0 if it did not count them."""
    peak_bytes: int = 0
    """Highest value; without a baseline, it only includes allocations in the window."""
    peak_us: float = 0.0
    peak_step: int | None = None
    peak_region: str = ""
    at_peak: list[Allocation] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    steps: list[tuple[int, Span]] = field(default_factory=list)
    backward: list[tuple[float, float]] = field(default_factory=list)
    """Intervals (start, end) of the backward passes, us."""
    start_us: float = 0.0
    end_us: float = 0.0
    peak_thread: int = 0
    """Host thread of the allocation that reached the peak."""
    peak_site: Frame | None = None
    """Function that was running at the peak, if functions were traced."""
    kept_sites: dict[str, Counter[Frame]] = field(default_factory=dict)
    """Bytes that outlive their step, by region and allocating function, if functions were traced."""
    released: list[tuple[float, int]] = field(default_factory=list)
    """Releases (us, bytes) of memory allocated before the window."""
    reserved: list[tuple[float, int]] = field(default_factory=list)
    """Changes (us, bytes) of the memory reserved by the device's allocator; empty on CPU."""
    is_cut: bool = False
    """Whether there were more than `MAX_EVENTS` events."""

    def retained(self) -> dict[int, Counter[str]]:
        """Return step -> bytes by region left alive at the end of the window, except what outlives a step by design."""
        result: dict[int, Counter[str]] = {number: Counter() for number, _ in self.steps}
        for block in self.outlive() if result else ():
            result[block.step or 0][block.region] += block.size_bytes
        return result

    def between_backwards(self) -> list[int]:
        """Return the bytes allocated between consecutive ends of backward and never freed, collectives included."""
        ends = [end for _, end in self.backward]
        sums = [0] * max(0, len(ends) - 1)
        for block in self.allocations:
            if block.end_us is None and 0 < (n := bisect_right(ends, block.start_us)) < len(ends):
                sums[n - 1] += block.size_bytes
        return sums

    def outlive(self) -> list[Allocation]:
        """Return the allocations that `retained` counts, largest first. Without marked steps, return all that stay."""
        steps = {number for number, _ in self.steps}
        staying = [
            block
            for block in self.allocations
            if block.end_us is None and not (block.gathered or block.lent or block.phase in _HELD_A_WHILE)
            if not steps or block.step in steps
        ]
        return sorted(staying, key=lambda block: -block.size_bytes)


def build(marks: TraceMarks) -> Curve | None:
    """Return the curve of the device that holds the most memory, or None without allocations."""
    ordered = _of_device(marks.events)
    if not ordered:
        return None
    is_cut, first = len(marks.events) == MAX_EVENTS, ordered[0]
    baseline = max(0, first.total_allocated_bytes - first.bytes) if first.device_type != _CPU else None
    named = [(span.start_us, span.end_us) for span in marks.spans if span.name == "backward"]
    backwards = named or [(span.start_us, span.end_us) for span in marks.backward]  # autograd's own events
    held_bytes = (marks.held_bytes or 0) if baseline is None else 0
    curve = Curve(first.device_type, baseline, held_bytes, steps=marks.steps, backward=backwards, is_cut=is_cut)
    curve.start_us, curve.end_us = first.ts_us, ordered[-1].ts_us
    spans, backend = OpenSpans(marks.spans), OpenSpans(marks.backend)
    backward_ends = [span.end_us for span in marks.backward]
    live: dict[int, Allocation] = {}
    level = baseline or 0
    for event in ordered:
        level += event.bytes
        if event.bytes > 0:
            if (released := live.pop(event.address, None)) is not None:  # Freed without an event.
                released.end_us = event.ts_us
                level -= released.size_bytes
            at = bisect_left(backward_ends, event.ts_us)
            backward = marks.backward[at] if at < len(backward_ends) else None
            live[event.address] = allocation = _allocation(event, spans.at(event.ts_us), backward)
            collectives = backend.at(event.ts_us) if event.device_type == _CPU else []
            allocation.backend = any(span.thread == event.thread for span in collectives)
            curve.allocations.append(allocation)
            if level > curve.peak_bytes:
                curve.peak_bytes, curve.peak_us, curve.peak_thread = level, event.ts_us, event.thread
                curve.peak_step, curve.peak_region = allocation.step, allocation.region
        elif (released := live.pop(event.address, None)) is not None:
            released.end_us = event.ts_us
        elif event.bytes:
            curve.released.append((event.ts_us, -event.bytes))
        reserved_bytes = event.total_reserved_bytes
        if event.device_type != _CPU and (curve.reserved[-1][1] if curve.reserved else 0) != reserved_bytes:
            curve.reserved.append((event.ts_us, reserved_bytes))
    curve.at_peak = _alive(curve.allocations, curve.peak_us)
    return curve


def together(blocks: list[Allocation]) -> list[Allocation]:
    """Return those of the blocks that were alive when they had most bytes."""
    moves = [(block.start_us, block.size_bytes) for block in blocks]
    moves = sorted(moves + [(block.end_us, -block.size_bytes) for block in blocks if block.end_us is not None])
    levels = list(accumulate(size_bytes for _, size_bytes in moves))
    return _alive(blocks, moves[levels.index(max(levels))][0]) if levels else []


def _alive(blocks: list[Allocation], at_us: float) -> list[Allocation]:
    return [block for block in blocks if block.start_us <= at_us and (block.end_us is None or block.end_us > at_us)]


def _of_device(events: list[MemoryEvent]) -> list[MemoryEvent]:
    """Return the events of the accelerator with the most bytes, otherwise of the CPU; sorted by time."""
    most: dict[tuple[int, int], int] = {}
    for event in events:
        key = (event.device_type, event.device_id)
        most[key] = max(most.get(key, 0), event.total_allocated_bytes)
    if not most:
        return []
    chosen = max(most, key=lambda key: (key[0] != _CPU, most[key], -key[1]))
    return sorted((e for e in events if (e.device_type, e.device_id) == chosen), key=lambda event: event.ts_us)


class OpenSpans:
    """Finds the open spans at given times. Spans are sorted by start, and times must not decrease."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = iter(spans)
        self._next = next(self._spans, None)
        self._open: list[Span] = []

    def at(self, now_us: float) -> list[Span]:
        """Return the spans open at `now_us`, outermost first."""
        while self._next is not None and self._next.start_us <= now_us:
            self._open.append(self._next)
            self._next = next(self._spans, None)
        self._open = [span for span in self._open if span.end_us >= now_us]
        return self._open


def _allocation(event: MemoryEvent, spans: list[Span], backward: Span | None) -> Allocation:
    names = [span.name for span in spans]
    step = next((span for span in spans if span.name.startswith(STEP)), None)
    # The most specific phase named by an open annotation is used.
    named = (phase for phase, regex in _PHASES.items() if any(map(regex.search, names)))
    if not (phase := next(named, "")):
        if backward is not None and backward.start_us <= event.ts_us:
            phase = "backward"
        elif step is None:
            phase = "outside"
        else:
            phase = "forward" if backward is not None and backward.start_us < step.end_us else "step"
    region = next((name for name in reversed(names) if not name.startswith(STEP)), "") or phase
    number = step_number(step.name) if step is not None else None
    return Allocation(event.bytes, event.ts_us, number, phase, region, thread=event.thread)


def without_backend(curve: Curve) -> Curve:
    """Return the curve with its peak computed without the memory that gloo allocates inside its collectives."""
    own = _released([block for block in curve.allocations if not block.backend])
    moves = [(block.start_us, block.size_bytes, block) for block in own]
    moves += [(block.end_us, -block.size_bytes, block) for block in own if block.end_us is not None]
    level = most = 0
    last: Allocation | None = None
    for _, change, block in sorted(moves, key=lambda move: move[:2]):
        level += change
        if level > most:
            most, last = level, block
    if last is None:
        return curve
    at_peak = _alive(own, last.start_us)
    return replace(curve, peak_bytes=most, peak_us=last.start_us, peak_step=last.step, at_peak=at_peak)


def _released(allocations: list[Allocation]) -> list[Allocation]:
    """End gathered buffers that gloo's threads freed without an event, at the next gather of the same unit."""
    younger: dict[tuple[str, int], float] = {}
    result = []
    for block in reversed(allocations):
        if block.phase == "gather" and block.lent:
            key = (block.region, block.size_bytes)
            if block.end_us is None and key in younger:
                block = replace(block, end_us=younger[key])
            younger[key] = block.start_us
        result.append(block)
    return result[::-1]
