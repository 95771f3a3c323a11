"""A rank is slow, not stuck: every call completed, and one rank kept coming long after the others."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.straggler import Straggler
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import left_open, unconfirmed
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Where, worded
from diagnostics.contract.formatting import ranks_spoken

ID = "hang.straggler"
_TEXTS = texts_beside(__file__)
_CONFIDENCE, _CHANCE_CONFIDENCE = 0.85, 0.4
_BY_CHANCE = 0.5
"""Share of the lost time for which the late rank waited for a core: then other programs, not its work, made it late."""
_MISSING = "stacks of all ranks, twice with a minute between: py-spy dump, or dtk attach"


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
    others = tuple(rank for rank in job.survey.members(case.key) if rank != case.rank)
    reached = case.call.cited() if case.call else f"position {case.position}"
    by_chance = case.core_wait_s >= _BY_CHANCE * case.lost_s
    said = ("usual", "by_chance") if by_chance else "usual"
    return [
        _parts.confirmed(
            job,
            ID,
            worded(_TEXTS, said=said, case=case, reached=reached, when=_when(case), others=ranks_spoken(others)),
            _CHANCE_CONFIDENCE if by_chance else _CONFIDENCE,
            seen={case.rank: f"late {_when(case)}"},
            ranks=(case.rank,),
            victims=others,
            group=_parts.group(job.survey, case.key),
            position=case.position,
            where=(*seen, *_parts.where(case.rank, case.call, "arrives late here")),
            cost=Cost(round(case.lost_s, 2), "s blocked"),
            evidence=tuple(EvidenceItem("inspector", file, "times of the same calls") for file in case.files),
        )
    ]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    if not waits or not stall.unclear:
        return None
    text = "{who:^} may only be late: nothing is pending there and no stack was left."
    return left_open(ID, text, _MISSING, about=stall.unclear)


CAUSE = declared(__file__, explain, decide)
