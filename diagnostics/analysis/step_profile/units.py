"""Gathers and reductions of sharded parameters, by micro-batch. No verdicts."""

from collections.abc import Sequence

from msgspec import Struct, field

from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile
from diagnostics.analysis.step_profile.reductions import PerRank

GOOD_UNITS = 8
"""Number of units above which finer sharding hides little more (FSDP's guidance: one unit per block or two)."""


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
        {profile.rank: _of_rank(profile) for profile in profiles},
        sharded={"all_gather", "reduce_scatter"} <= {call.message.op for call in calls},
        phases=any(call.phase for call in calls),
    )


def hidden_share(calls: Sequence[CallProfile]) -> float:
    """Return the share of the calls' time that overlaps with compute."""
    time = sum(call.duration for call in calls)
    return sum(call.overlapped for call in calls) / time if time else 0.0


def _of_rank(profile: RankProfile) -> list[MicroBatch]:
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
