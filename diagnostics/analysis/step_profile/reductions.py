"""Reductions of gradients: how many, how large, when, how well hidden. No verdicts."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Generic, TypeVar

from msgspec import Struct, field

from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile

MANY = 8
"""Reductions of one backward pass from which on they are many: twice the buckets that DDP makes of 100 MiB."""
MOST = 0.8
"""Share of the bytes, or of the calls, that counts as nearly all of them."""
TINY_BYTES = 1 << 20
"""Up to DDP's first bucket a collective's time is mostly its fixed cost (Li et al. 2020, figure 2)."""
_OPS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_SCALAR_BYTES = 64
"""Norms, losses and flags are no gradients."""
_LARGE = 0.1
"""Share of the bytes from which on one reduction is large."""


class StepReductions(Struct):
    """Those of one step of one rank."""

    micros: int
    span: tuple[int, int]
    """The last backward pass on the device, ns."""
    updated: int = 0
    """Backward passes that the optimizer follows before the next one; 0 where the optimizer is not marked."""
    inside: list[CallProfile] = field(default_factory=list)
    """Issued during a backward pass."""
    after: list[CallProfile] = field(default_factory=list)
    """Issued between backward and optimizer."""

    @property
    def backward(self) -> int:
        """Device time of the last backward pass, ns."""
        return self.span[1] - self.span[0]

    def last(self) -> list[CallProfile]:
        """Those of the last micro-batch, issued during backward."""
        return [call for call in self.inside if call.micro == self.micros - 1]


def total_bytes(calls: Sequence[CallProfile]) -> int:
    """0 = unknown."""
    sizes = [call.message.size_bytes for call in calls]
    return sum(sizes) if all(sizes) else 0


def share_of(call: CallProfile, calls: Sequence[CallProfile]) -> float:
    """Of the bytes (of the transfer time where sizes are unknown), 0 to 1."""
    sized = total_bytes(calls)
    whole = sized or sum(other.transfer for other in calls)
    return (call.message.size_bytes if sized else call.transfer) / whole if whole else 0.0


def large(calls: Sequence[CallProfile]) -> list[CallProfile]:
    """Those that hold a tenth of the bytes at least."""
    return [call for call in calls if share_of(call, calls) >= _LARGE]


def tiny(calls: Sequence[CallProfile], brief_ns: int) -> int:
    """How many are tiny; where sizes are unknown, those whose transfer is at most `brief_ns`."""
    return sum(
        call.message.size_bytes <= TINY_BYTES if call.message.size_bytes else call.transfer <= brief_ns
        for call in calls
    )


Part = TypeVar("Part")


class PerRank(Struct, Generic[Part]):
    """The parts of each rank's time: its steps, or its micro-batches."""

    of_rank: dict[int, list[Part]]
    """Rank -> its parts, by time."""

    def __bool__(self) -> bool:
        """Return whether any rank has a part."""
        return any(self.of_rank.values())

    def typical(self, amount: Callable[[Part], float]) -> float:
        """Median over the parts of a rank, then over ranks; 0 without any."""
        ranks = [median(map(amount, parts)) for parts in self.of_rank.values() if parts]
        return median(ranks) if ranks else 0.0

    @property
    def sample(self) -> Part:
        """One in the middle of a rank, to name sizes and counts."""
        parts = next(parts for parts in self.of_rank.values() if parts)
        return parts[len(parts) // 2]


Reductions = PerRank[StepReductions]
"""Those of all ranks, by steps in which backward is visible."""


def find_reductions(profiles: Sequence[RankProfile]) -> Reductions:
    """Return the reductions of every step of each rank in which backward is visible."""
    result: Reductions = PerRank({})
    for profile in profiles:
        steps = [StepReductions(step.micros, (step.backward or [(0, 0)])[-1], step.updated) for step in profile.steps]
        for call in profile.state_calls():
            size = call.message.size_bytes
            if call.message.op not in _OPS or 0 < size <= _SCALAR_BYTES:
                continue
            if call.phase == "backward" and not (call.waited or call.on_compute):
                steps[call.step].inside.append(call)
            elif call.phase == "after":
                steps[call.step].after.append(call)
        result.of_rank[profile.rank] = [step for step in steps if step.micros]
    return result
