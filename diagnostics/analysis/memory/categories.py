"""The categories of one rank's memory, at its peak and over time."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import merge
from itertools import pairwise
from math import inf
from operator import itemgetter

from msgspec import Struct

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.model_size import States
from diagnostics.analysis.memory.profiled import ROUND_BYTES
from diagnostics.evidence.memory import levels as memory_levels
from diagnostics.evidence.memory.levels import AT, KINDS, RESERVED, Row, Stack

PARAMETERS, GRADIENTS, OPTIMIZER = memory_levels.PARAMETERS, memory_levels.GRADIENTS, memory_levels.OPTIMIZER
ACTIVATIONS, KEPT, SAVED = memory_levels.ACTIVATIONS, memory_levels.KEPT, memory_levels.SAVED
GATHERED, LOGITS, BUCKETS, COLLECTED = "gathered parameters", "logits", "buckets", "gathered tensors"
TEMPORARIES, OTHER, UNKNOWN, COPIES = "optimizer temporaries", "other", "unknown", "the backend's copies"
KIND_OF = {
    **{kind: kind for kind in (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, KEPT, SAVED)},
    **dict.fromkeys((GATHERED, BUCKETS, COLLECTED, COPIES), memory_levels.BUFFERS),
    LOGITS: ACTIVATIONS,
    TEMPORARIES: memory_levels.TEMPORARIES,
    **dict.fromkeys((OTHER, UNKNOWN), memory_levels.UNKNOWN),
}
"""Kind under which each category is drawn over time."""
_BY_PHASE = {"gather": GATHERED, "reduce": BUCKETS, "forward": ACTIVATIONS, "evaluation": ACTIVATIONS}
_Move = tuple[float, int, tuple[tuple[int, int], ...]]
"""Time (us), order at equal times (releases before allocations), and changes of levels."""


class Peak(Struct, frozen=True):
    """One rank's peak, by category."""

    total_bytes: int
    categories: dict[str, int]
    """Bytes by category, largest first; they add up to `total_bytes`."""
    computed: tuple[str, ...]
    """Categories computed from the model's size rather than from recorded allocations."""


class _Sorter:
    """Classifies the allocations of one curve. Each query is a binary search over the steps or backward passes."""

    def __init__(self, curve: Curve, logits_bytes: int | None) -> None:
        self._logits_bytes = logits_bytes
        self._steps = dict(curve.steps)
        self._step_starts = sorted(span.start_us for _, span in curve.steps)
        self._backward = sorted(curve.backward)
        self._backward_starts = [start for start, _ in self._backward]

    def next_step_us(self, block: Allocation) -> float:
        """Return the start of the step after the allocation's own; a block alive then has outlived its step."""
        span = self._steps.get(block.step) if block.step is not None else None
        at = bisect_right(self._step_starts, span.start_us) if span is not None else len(self._step_starts)
        return self._step_starts[at] if at < len(self._step_starts) else inf

    def category(self, block: Allocation, *, outlived: bool) -> str:
        """Return the category of an allocation of the curve; with `outlived` at a time after its own step."""
        communicates = block.phase in ("gather", "reduce")
        if block.gathered or block.phase == "checkpoint":
            return COLLECTED if block.gathered else SAVED
        if block.phase == "optimizer":
            span = self._steps.get(block.step) if block.step is not None else None
            stays = block.end_us is None or (span is not None and block.end_us > span.end_us)
            return OPTIMIZER if stays else TEMPORARIES
        if block.sent:
            return BUCKETS
        if block.backend:
            return _BY_PHASE[block.phase] if communicates else COPIES
        if outlived:
            if block.phase in ("backward", "reduce") and block.end_us is not None:
                return GRADIENTS
            return _BY_PHASE[block.phase] if communicates else KEPT
        if self._logits_bytes and self._logits_bytes <= block.size_bytes < self._logits_bytes + ROUND_BYTES:
            return LOGITS
        if block.phase in ("backward", "reduce"):
            # Gradients of parameters live on into clipping and the optimizer; those of activations do not.
            at = bisect_right(self._backward_starts, block.start_us) - 1
            pass_end_us = self._backward[at][1] if at >= 0 and block.start_us <= self._backward[at][1] else inf
            if block.end_us is None or block.end_us > pass_end_us:
                return GRADIENTS
        return ACTIVATIONS if block.phase == "backward" else _BY_PHASE.get(block.phase, OTHER)


def peak(job: JobMemory, rank: RankMemory) -> Peak | None:
    """Return the categories at the peak of the recorded window or history; None without recorded allocations."""
    curve = rank.curve
    if curve is None:
        return _of_history(rank)
    sorter = _Sorter(curve, job.size.logits_bytes)
    sizes: Counter[str] = Counter()
    for block in curve.at_peak:
        sizes[sorter.category(block, outlived=sorter.next_step_us(block) <= curve.peak_us)] += block.size_bytes
    measured = sizes.total()
    before = curve.peak_bytes - measured if curve.baseline_bytes is not None else job.before_window(rank)
    parts = shared_out(before or 0, job.size.states())
    sizes.update(parts)
    total = measured + (before or 0)
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    ordered = {name: size for name, size in largest if size > 0}
    return Peak(total, ordered, tuple(name for name in parts if name != UNKNOWN)) if total > 0 else None


def _of_history(rank: RankMemory) -> Peak | None:
    """Return the peak of the device with the highest one, by a snapshot or torch's profiler; None without one."""
    history = rank.history[0] if rank.history is not None else None
    if history is None or history.peak is None or not memory_levels.total(history.peak):
        return None
    named = zip((UNKNOWN if name == memory_levels.UNKNOWN else name for name in KINDS[:-1]), history.peak[1])
    largest = sorted(((name, size) for name, size in named if size), key=lambda item: -item[1])
    return Peak(memory_levels.total(history.peak), dict(largest), ())


def shared_out(before_bytes: int, states: States | None) -> dict[str, int]:
    """Distribute bytes from before the window over the model states, longest-lived first; the remainder is unknown."""
    parts = {}
    if states is not None:
        sizes = ((PARAMETERS, states.parameters), (OPTIMIZER, states.optimizer), (GRADIENTS, states.gradients))
        for name, size in sizes:
            if (part := min(before_bytes, size)) > 0:
                parts[name] = part
                before_bytes -= part
    if before_bytes > 0:
        parts[UNKNOWN] = before_bytes
    return parts


def sweep(curve: Curve, before_bytes: int, states: States | None, logits_bytes: int | None) -> list[Row]:
    """Return rows of bytes by kind over time, in seconds from the first event; the peak of the curve is one of them.

    `before_bytes`, measured or computed, are distributed over the model states, if these are known.
    """
    levels = _levels(before_bytes, states)
    levels[AT[RESERVED]] = curve.reserved[0][1] if curve.reserved else 0
    stack = Stack(curve.start_us, curve.end_us, levels, pinned=curve.peak_us)
    starts: list[_Move] = []
    ends: list[_Move] = []
    outlived: list[_Move] = []
    sorter = _Sorter(curve, logits_bytes)
    for block in curve.allocations:
        end_us, size = inf if block.end_us is None else block.end_us, block.size_bytes
        later_us = sorter.next_step_us(block)
        if end_us <= block.start_us:
            continue  # shorter than the clock can tell
        place = last = AT[KIND_OF[sorter.category(block, outlived=False)]]
        if later_us < end_us:  # in the next step its category changes: gradients, or kept
            last = AT[KIND_OF[sorter.category(block, outlived=True)]]
        starts.append((block.start_us, 3, ((place, size),)))
        if last != place:
            outlived.append((later_us, 1, ((place, -size), (last, size))))
        if end_us < inf:
            ends.append((end_us, 0, ((last, -size),)))
    at = itemgetter(0, 1)
    reserved_steps = pairwise(curve.reserved)
    reserved: list[_Move] = [(time_us, 2, ((AT[RESERVED], new - old),)) for (_, old), (time_us, new) in reserved_steps]
    moves = (sorted(ends, key=at), _released(curve, before_bytes, states), sorted(outlived, key=at), reserved)
    for time_us, _, changes in merge(*moves, starts, key=at):
        stack.move(time_us, changes)
    return [((time_us - curve.start_us) / 1e6, sizes) for time_us, sizes in stack.finish()]


def _levels(before_bytes: int, states: States | None) -> list[int]:
    levels = [0] * len(KINDS)
    for name, size in shared_out(before_bytes, states).items():
        levels[AT[KIND_OF[name]]] += size
    return levels


def _released(curve: Curve, before_bytes: int, states: States | None) -> Iterator[_Move]:
    """Yield the releases of memory allocated before the window; the shortest-lived states are released first."""
    remaining_bytes, old = before_bytes, _levels(before_bytes, states)
    for time_us, size in curve.released if curve.baseline_bytes is not None else ():
        remaining_bytes = max(0, remaining_bytes - size)
        new = _levels(remaining_bytes, states)
        yield time_us, 0, tuple((at, new[at] - old[at]) for at in range(len(KINDS)) if new[at] != old[at])
        old = new
