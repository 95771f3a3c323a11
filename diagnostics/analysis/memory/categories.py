"""What the peak of one rank consists of: measured where allocations were recorded, computed for what lay
there before the profiled window. What neither tells stays `unknown`. Decides nothing.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.analysis.memory.model_size import States
from diagnostics.evidence.memory import levels as memory_levels

PARAMETERS, GATHERED, GRADIENTS = "parameters", "gathered parameters", "gradients"
OPTIMIZER, ACTIVATIONS, LOGITS = "optimizer states", "activations", "logits"
BUCKETS, COLLECTED, KEPT = "buckets", "gathered tensors", "kept from earlier steps"
TEMPORARIES, OTHER, UNKNOWN = "optimizer temporaries", "other", "unknown"
COPIES = "the backend's copies"
KIND_OF = {
    PARAMETERS: memory_levels.PARAMETERS,
    GRADIENTS: memory_levels.GRADIENTS,
    OPTIMIZER: memory_levels.OPTIMIZER,
    GATHERED: memory_levels.BUFFERS,
    BUCKETS: memory_levels.BUFFERS,
    COLLECTED: memory_levels.BUFFERS,
    COPIES: memory_levels.BUFFERS,
    ACTIVATIONS: memory_levels.ACTIVATIONS,
    LOGITS: memory_levels.ACTIVATIONS,
    TEMPORARIES: memory_levels.TEMPORARIES,
    KEPT: memory_levels.KEPT,
    OTHER: memory_levels.UNKNOWN,
    UNKNOWN: memory_levels.UNKNOWN,
}
"""What each category is drawn as over time."""
_BY_PHASE = {"gather": GATHERED, "reduce": BUCKETS, "forward": ACTIVATIONS, "evaluation": ACTIVATIONS}
_LOGITS_TOLERANCE = 512


@dataclass(frozen=True, slots=True)
class Peak:
    """One rank's peak, taken apart."""

    total_bytes: int
    categories: dict[str, int]
    """The largest first; they add up to the total."""
    computed: tuple[str, ...]
    """Categories that rest on the model's size rather than on recorded allocations."""

    def share(self, *names: str) -> float:
        """Of these categories together, a fraction of 1."""
        return sum(self.categories.get(name, 0) for name in names) / self.total_bytes if self.total_bytes else 0.0


class Sorter:
    """Says what allocations of one curve are for; each question takes a search among its steps at most."""

    def __init__(self, curve: Curve, logits_bytes: int | None) -> None:
        self._logits_bytes = logits_bytes
        self._steps = dict(curve.steps)
        self._step_starts = sorted(span.start_us for _, span in curve.steps)
        self._backward = sorted(curve.backward)
        self._backward_starts = [start for start, _ in self._backward]

    def next_step_us(self, one: Allocation) -> float | None:
        """When the step after the allocation's own begins: what lives then has outlived its step."""
        span = self._steps.get(one.step) if one.step is not None else None
        at = bisect_right(self._step_starts, span.start_us) if span is not None else len(self._step_starts)
        return self._step_starts[at] if at < len(self._step_starts) else None

    def category(self, one: Allocation, *, outlived: bool) -> str:
        """What it is for.

        Args:
            one: an allocation of the curve.
            outlived: whether asked of a moment in a later step than its own.
        """
        if one.gathered:
            return COLLECTED
        if one.phase == "optimizer":
            return OPTIMIZER if self._outlives_its_step(one) else TEMPORARIES
        if one.sent:
            return BUCKETS
        if one.backend:
            return _BY_PHASE[one.phase] if one.phase in ("gather", "reduce") else COPIES
        if outlived:
            return self._of_later(one)
        if self._logits_bytes and self._logits_bytes <= one.size_bytes < self._logits_bytes + _LOGITS_TOLERANCE:
            return LOGITS
        if one.phase in ("backward", "reduce") and self._outlives_backward(one):
            return GRADIENTS
        if one.phase == "backward":
            return ACTIVATIONS
        return _BY_PHASE.get(one.phase, OTHER)

    def _of_later(self, one: Allocation) -> str:
        """In a later step than its own."""
        if one.phase in ("backward", "reduce") and one.end_us is not None:
            return GRADIENTS
        return _BY_PHASE[one.phase] if one.phase in ("gather", "reduce") else KEPT

    def _outlives_its_step(self, one: Allocation) -> bool:
        span = self._steps.get(one.step) if one.step is not None else None
        return one.end_us is None or (span is not None and one.end_us > span.end_us)

    def _outlives_backward(self, one: Allocation) -> bool:
        """Gradients of parameters live on into clipping and the optimizer; those of activations do not."""
        at = bisect_right(self._backward_starts, one.start_us) - 1
        end_us = self._backward[at][1] if at >= 0 and one.start_us <= self._backward[at][1] else None
        return one.end_us is None or (end_us is not None and one.end_us > end_us)


def peak(situation: Situation, rank: RankMemory) -> Peak | None:
    """The categories at the peak of the recorded window; None without recorded allocations."""
    curve = rank.curve
    if curve is None:
        return None
    sorter = Sorter(curve, situation.facts.logits_bytes)
    found: Counter[str] = Counter()
    for one in curve.at_peak:
        later_us = sorter.next_step_us(one)
        outlived = later_us is not None and later_us <= curve.peak_us
        found[sorter.category(one, outlived=outlived)] += one.size_bytes
    measured = sum(found.values())
    states = situation.states()
    before = curve.peak_bytes - measured if curve.baseline_bytes is not None else situation.before_window(rank)
    computed: tuple[str, ...] = ()
    if before:
        parts = shared_out(before, states)
        computed = tuple(name for name in parts if name != UNKNOWN)
        found.update(parts)
    total = measured + (before or 0)
    ordered = dict(
        sorted(((name, size) for name, size in found.items() if size > 0), key=lambda one: (-one[1], one[0]))
    )
    return Peak(total, ordered, computed) if total > 0 else None


def shared_out(before: int, states: States | None) -> dict[str, int]:
    """Bytes that lay there before the window, as model states in the order of their life; the rest is unknown."""
    parts = {}
    if states is not None:
        sizes = ((PARAMETERS, states.parameters), (OPTIMIZER, states.optimizer), (GRADIENTS, states.gradients))
        for name, size in sizes:
            part = min(before, size)
            if part > 0:
                parts[name] = part
                before -= part
    if before > 0:
        parts[UNKNOWN] = before
    return parts
