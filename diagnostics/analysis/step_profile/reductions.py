"""What is known about the reductions of gradients: how many, how large, when, how well hidden. Facts, no verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.profile import Fact, RankProfile

OPS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_SCALAR_BYTES = 64
"""Norms, losses and flags are no gradients."""
_LARGE = 0.1


@dataclass(slots=True)
class Reduced:
    """One reduction with its split into transfer and waiting (ns)."""

    call: Fact
    transfer: int
    exposed: int
    """Of the transfer."""


@dataclass(slots=True)
class StepReductions:
    """Those of one step of one rank."""

    micros: int
    backward: int
    """Device time of the last backward pass, ns."""
    span: tuple[int, int]
    """The last backward pass."""
    updated: int = 0
    """Backward passes that the optimizer follows before the next one; 0 where the optimizer is not marked."""
    inside: list[Reduced] = field(default_factory=list)
    """Issued during a backward pass."""
    after: list[Reduced] = field(default_factory=list)
    """Issued between backward and optimizer."""

    def last(self) -> list[Reduced]:
        """Those of the last micro-batch, issued during backward."""
        return [one for one in self.inside if one.call.micro == self.micros - 1]


def weight(ones: list[Reduced]) -> int:
    """Bytes; transfer time where sizes are unknown."""
    sizes = [one.call.message.size_bytes for one in ones]
    return sum(sizes) if all(sizes) else sum(one.transfer for one in ones)


def total_bytes(ones: list[Reduced]) -> int:
    """0 = unknown."""
    sizes = [one.call.message.size_bytes for one in ones]
    return sum(sizes) if sizes and all(sizes) else 0


def share_of(one: Reduced, ones: list[Reduced]) -> float:
    """Of the bytes (of the transfer time where sizes are unknown), 0 to 1."""
    whole = weight(ones)
    part = one.call.message.size_bytes if total_bytes(ones) else one.transfer
    return part / whole if whole else 0.0


def large(ones: list[Reduced]) -> list[Reduced]:
    """Those that hold a tenth of it at least."""
    return [one for one in ones if share_of(one, ones) >= _LARGE]


def find(view: Overview, one: RankProfile) -> list[StepReductions]:
    """Per step of a rank, in which backward is visible."""
    steps = [
        StepReductions(
            micros=step.micros,
            backward=step.backward[-1][1] - step.backward[-1][0] if step.backward else 0,
            span=step.backward[-1] if step.backward else (0, 0),
            updated=step.updated,
        )
        for step in one.steps
    ]
    for call, transfer, exposed in view.calls(one):
        size = call.message.size_bytes
        if call.message.op not in OPS or (size and size <= _SCALAR_BYTES) or call.message.group == "control":
            continue
        if call.phase == "backward" and not (call.waited or call.on_compute):
            steps[call.step].inside.append(Reduced(call, transfer, exposed))
        elif call.phase == "after":
            steps[call.step].after.append(Reduced(call, transfer, exposed))
    return [step for step in steps if step.micros]


def latency(view: Overview) -> float:
    """Fixed cost of a collective, ns: the shortest transfers seen, at most 200 us on a device."""
    shortest = [
        transfer for one in view.profiles for call, transfer, _ in view.calls(one) if call.message.size_bytes <= 1 << 20
    ]
    if not shortest:
        return 20_000.0
    shortest.sort()
    return min(float(median(shortest[: max(1, len(shortest) // 4)])), 200_000.0 if view.on_device else 2e6)


Steps = dict[int, list[StepReductions]]
"""Rank -> its steps."""


def typical(steps: Steps, amount: Callable[[StepReductions], float]) -> float:
    """Median over steps of a rank, then over ranks."""
    ranks = [median(amount(step) for step in ones) for ones in steps.values() if ones]
    return median(ranks) if ranks else 0.0


def sample_of(steps: Steps) -> StepReductions:
    """One step in the middle of a rank, to name sizes and counts."""
    ones = next(ones for ones in steps.values() if ones)
    return ones[len(ones) // 2]
