"""Collectives of model states: reductions of gradients by step, gathers and reductions of shards by micro-batch."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Generic, TypeVar

from msgspec import Struct, field

from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile
from diagnostics.analysis.vote import is_majority

MANY = 8  # Number of reductions per backward pass that counts as many: twice the buckets that DDP uses for 100 MiB.
MOST = 0.8  # Share of the bytes, or of the calls, that counts as nearly all of them.
TINY_BYTES = 1 << 20
"""Size of DDP's first bucket; up to it, a collective's time is mostly fixed cost (Li et al. 2020, figure 2)."""
GOOD_UNITS = 8
"""Number of units above which finer sharding hides little more (FSDP's guidance: one unit per block or two)."""
_OPS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_SCALAR_BYTES = 64  # Size up to which a reduction is a norm, a loss or a flag and not a gradient.
_LARGE = 0.1  # Minimum share of the bytes for a reduction to count as large.


class StepReductions(Struct):
    """Gradient reductions of one step of one rank."""

    micros: int
    span: tuple[int, int]
    """Interval of the last backward pass on the device, ns."""
    updated: int = 0
    """Number of backward passes with an optimizer step before the next one; 0 if the optimizer is not marked."""
    inside: list[CallProfile] = field(default_factory=list)
    """Reductions issued during a backward pass."""
    after: list[CallProfile] = field(default_factory=list)
    """Reductions issued between backward and the optimizer."""

    @property
    def backward(self) -> int:
        """Device time of the last backward pass, ns."""
        return self.span[1] - self.span[0]

    def last(self) -> list[CallProfile]:
        """Return the reductions of the last micro-batch that were issued during backward."""
        return [call for call in self.inside if call.micro == self.micros - 1]


def total_bytes(calls: Sequence[CallProfile]) -> int:
    """Return the total size of the calls in bytes; 0 if any size is unknown."""
    sizes = [call.message.size_bytes for call in calls]
    return sum(sizes) if all(sizes) else 0


def share_of(call: CallProfile, calls: Sequence[CallProfile]) -> float:
    """Return a call's share of the bytes (of the transfer time if sizes are unknown), 0 to 1."""
    sized = total_bytes(calls)
    whole = sized or sum(other.transfer for other in calls)
    return (call.message.size_bytes if sized else call.transfer) / whole if whole else 0.0


def large(calls: Sequence[CallProfile]) -> list[CallProfile]:
    """Return the calls with at least a tenth of the bytes."""
    return [call for call in calls if share_of(call, calls) >= _LARGE]


def tiny(calls: Sequence[CallProfile], brief_ns: int) -> int:
    """Return the number of tiny calls; a call of unknown size is tiny if its transfer takes at most `brief_ns`."""
    return sum(
        call.message.size_bytes <= TINY_BYTES if call.message.size_bytes else call.transfer <= brief_ns
        for call in calls
    )


Part = TypeVar("Part")


class PerRank(Struct, Generic[Part]):
    """Parts of each rank's time: its steps or micro-batches."""

    of_rank: dict[int, list[Part]]
    """Parts by rank, ordered by time."""

    def __bool__(self) -> bool:
        return any(self.of_rank.values())

    def typical(self, amount: Callable[[Part], float]) -> float:
        """Return the median over the parts of each rank, then over ranks; 0 without any."""
        ranks = [median(map(amount, parts)) for parts in self.of_rank.values() if parts]
        return median(ranks) if ranks else 0.0

    def mostly(self, test: Callable[[Part], bool]) -> bool:
        """Return whether most parts of most ranks pass a test."""
        ranks = [is_majority(sum(map(test, parts)), len(parts)) for parts in self.of_rank.values() if parts]
        return is_majority(sum(ranks), len(ranks))

    @property
    def sample(self) -> Part:
        """A part from the middle of a rank, as an example for sizes and counts."""
        parts = next(parts for parts in self.of_rank.values() if parts)
        return parts[len(parts) // 2]


Reductions = PerRank[StepReductions]  # Reductions of all ranks, for the steps in which backward is visible.


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


class MicroBatch(Struct):
    """Gathers and reductions of one micro-batch of one step of one rank."""

    gathers: list[CallProfile] = field(default_factory=list)
    """Gathers in forward."""
    again: list[CallProfile] = field(default_factory=list)
    """Gathers in backward."""
    scatters: list[CallProfile] = field(default_factory=list)
    compute: int = 0
    """Compute time of one micro-batch, ns."""

    @property
    def calls(self) -> list[CallProfile]:
        """All gathers and reductions of the micro-batch."""
        return self.gathers + self.again + self.scatters


class Units(PerRank[MicroBatch]):
    """Gathers and reductions of all ranks, by micro-batch."""

    sharded: bool
    """Whether there are any all_gathers and reduce_scatters."""
    phases: bool
    """Whether the trace shows when forward and backward run."""


def find_units(profiles: Sequence[RankProfile]) -> Units:
    """Return the gathers and reductions of all ranks, by micro-batch."""
    calls = [call for profile in profiles for call in profile.state_calls()]
    return Units(
        {profile.rank: _micro_batches(profile) for profile in profiles},
        sharded={"all_gather", "reduce_scatter"} <= {call.message.op for call in calls},
        phases=any(call.phase for call in calls),
    )


def hidden_share(calls: Sequence[CallProfile]) -> float:
    """Return the share of the calls' time that overlaps with compute."""
    time = sum(call.duration for call in calls)
    return sum(call.overlapped for call in calls) / time if time else 0.0


def _micro_batches(profile: RankProfile) -> list[MicroBatch]:
    batches: dict[tuple[int, int], MicroBatch] = {}
    for call in profile.state_calls():
        if call.message.op not in ("all_gather", "reduce_scatter") or call.phase in ("", "optimizer"):
            continue
        batch = batches.setdefault((call.step, call.micro), MicroBatch())
        if call.message.op == "reduce_scatter":
            batch.scatters.append(call)
        else:
            (batch.gathers if call.phase == "forward" else batch.again).append(call)
    for (step, _), batch in batches.items():
        batch.compute = profile.steps[step].times.compute // max(1, profile.steps[step].micros)
    return [batches[key] for key in sorted(batches)]
