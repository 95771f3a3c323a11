"""A rank is slow, not stuck: every call completed, and one rank kept coming long after the others."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.straggler import Straggler
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import left_open, unconfirmed
from diagnostics.contract.findings import Cost, Finding, Remedy, Text, Where, worded
from diagnostics.contract.formatting import ranks_spoken

ID = "hang.straggler"
_MISSING = "stacks of all ranks, twice with a minute between: py-spy dump, or dtk attach"


def _words(finding: Finding, case: Straggler) -> Text:
    reached = case.call.cited() if case.call else f"position {case.position}"
    lost = f"{case.lost_s:.1f} s of {case.window_s:.1f} s"
    return Text(
        summary=(
            f"Rank {case.rank} is late, not stuck: it reached {reached} and others {_when(case)} after "
            f"{ranks_spoken(finding.victims)}; everything completed. {lost} were lost by waiting for it."
        ),
        measured=lost,
        remedies=(
            Remedy(
                "code",
                f"look at what rank {case.rank} does before this call that the others do not: its data, its disk, "
                "its node",
                "every step takes as long as the slowest rank",
            ),
        ),
    )


def _when(case: Straggler) -> str:
    return f"{case.times} times, up to {case.worst_s:.1f} s" if case.times > 1 else f"{case.worst_s:.1f} s"


def decide(stall: Stall) -> list[Finding]:
    """Decide from the times at which ranks reached the same positions."""
    case, job = stall.straggler, stall.job
    if case is None:
        return [unconfirmed(stall, ID, _MISSING, otherwise=_otherwise)]
    seen: tuple[Where, ...] = ()
    if case.seen_at is not None:
        frame, times, samples = case.seen_at
        does = f"was here in {times} of {samples} samples between its collectives, its peers were not"
        seen = _parts.where(case.rank, frame, does)
    return [
        _parts.confirmed(
            job,
            ID,
            worded(_words, case=case),
            0.85,
            seen={case.rank: f"late {_when(case)}"},
            ranks=(case.rank,),
            victims=tuple(rank for rank in job.survey.members(case.key) if rank != case.rank),
            group=_parts.group(job.survey, case.key),
            position=case.position,
            where=(*seen, *_parts.where(case.rank, case.call, "arrives late here")),
            cost=Cost(round(case.lost_s, 2), "s blocked"),
        )
    ]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    if not waits or not stall.unclear:
        return None
    text = "{who} may only be late: nothing is pending there and no stack was left."
    return left_open(ID, text, _MISSING, about=stall.unclear)


CAUSE = declared(__file__, explain, decide)
