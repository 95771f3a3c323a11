"""What the peak of one rank consists of: measured where allocations were recorded, computed for what lay
there before the profiled window. What neither tells stays `unknown`. Decides nothing.
"""

from collections import Counter
from dataclasses import dataclass

from diagnostics.detectors.memory.curve import Allocation, Curve
from diagnostics.detectors.memory.facts import States
from diagnostics.detectors.memory.situation import RankMemory, Situation

PARAMETERS, GATHERED, GRADIENTS = "parameters", "gathered parameters", "gradients"
OPTIMIZER, ACTIVATIONS, LOGITS = "optimizer states", "activations", "logits"
BUCKETS, COLLECTED, KEPT = "buckets", "gathered tensors", "kept from earlier steps"
TEMPORARIES, OTHER, UNKNOWN = "optimizer temporaries", "other", "unknown"
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


def peak(situation: Situation, rank: RankMemory) -> Peak | None:
    """The categories at the peak of the recorded window; None without recorded allocations."""
    curve = rank.curve
    if curve is None:
        return None
    found: Counter[str] = Counter()
    for one in curve.at_peak:
        found[_category(one, curve, situation.facts.logits_bytes)] += one.size_bytes
    measured = sum(found.values())
    states = situation.states()
    before = curve.peak_bytes - measured if curve.baseline_bytes is not None else situation.before_window(rank)
    computed: tuple[str, ...] = ()
    if before and states is not None:
        computed = _states_before(before, states, found)
    elif before:
        found[UNKNOWN] += before
    total = measured + (before or 0)
    ordered = dict(
        sorted(((name, size) for name, size in found.items() if size > 0), key=lambda one: (-one[1], one[0]))
    )
    return Peak(total, ordered, computed) if total > 0 else None


def _states_before(before: int, states: States, found: Counter[str]) -> tuple[str, ...]:
    """Share what lay there before the window among the model states, in the order of their life."""
    names = []
    for name, size in ((PARAMETERS, states.parameters), (OPTIMIZER, states.optimizer), (GRADIENTS, states.gradients)):
        part = min(before, size)
        if part > 0:
            found[name] += part
            before -= part
            names.append(name)
    if before > 0:
        found[UNKNOWN] += before
    return tuple(names)


def _category(one: Allocation, curve: Curve, logits_bytes: int | None) -> str:
    if one.gathered:
        return COLLECTED
    if one.phase == "optimizer":
        return OPTIMIZER if _outlives_its_step(one, curve) else TEMPORARIES
    if one.step is not None and curve.peak_step is not None and one.step < curve.peak_step:
        return GRADIENTS if one.phase == "backward" and one.end_us is not None else KEPT
    if logits_bytes and logits_bytes <= one.size_bytes < logits_bytes + _LOGITS_TOLERANCE:
        return LOGITS
    if one.phase == "backward":
        return GRADIENTS if _outlives_backward(one, curve) else ACTIVATIONS
    return _BY_PHASE.get(one.phase, OTHER)


def _outlives_its_step(one: Allocation, curve: Curve) -> bool:
    end_us = next((span.end_us for number, span in curve.steps if number == one.step), None)
    return one.end_us is None or (end_us is not None and one.end_us > end_us)


def _outlives_backward(one: Allocation, curve: Curve) -> bool:
    """Gradients of parameters live on into clipping and the optimizer; those of activations do not."""
    end_us = next((end for start, end in curve.backward if start <= one.start_us <= end), None)
    return one.end_us is None or (end_us is not None and one.end_us > end_us)
