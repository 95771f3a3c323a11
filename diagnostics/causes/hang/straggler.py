"""A rank is slow, not stuck: every call completed, and one rank repeatedly arrived long after the others."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import left_open, unconfirmed
from diagnostics.contract.findings import LIKELY, SEEN, SUSPECTED, Cost, EvidenceItem, Finding, Where
from diagnostics.contract.formatting import ranks_spoken

_TEXTS = Texts(__file__)
_BY_CHANCE = 0.5
"""Share of the lost time that the late rank waited for a CPU core, from which on other programs made it late."""
_MISSING = _TEXTS.phrase("stacks")


def decide(stall: Stall) -> Finding:
    """Decide from the times at which ranks reached the same positions."""
    case, job = stall.straggler, stall.job
    if case is None:
        return unconfirmed(stall, _MISSING, otherwise=_otherwise)
    seen: tuple[Where, ...] = ()
    if case.seen_at is not None:
        frame, times, samples = case.seen_at
        does = _TEXTS.phrase("samples", times=times, samples=samples)
        seen = _parts.where(case.rank, frame, does)
    others = tuple(rank for rank in job.survey.members(case.key) if rank != case.rank)
    reached = case.call.cited() if case.call else f"position {case.position}"
    by_chance = case.core_wait_s >= _BY_CHANCE * case.lost_s
    when = _TEXTS.phrase("often" if case.times > 1 else "once", case=case)
    rows = "suspended" if case.suspended else ("default", "by_chance") if by_chance else "default"
    return _parts.confirmed(
        job,
        _TEXTS.facts(rows, case=case, reached=reached, when=when, others=ranks_spoken(others)),
        SEEN if case.suspended else SUSPECTED if by_chance else LIKELY,
        seen={} if case.suspended else {case.rank: _TEXTS.phrase("late", when=when)},
        ranks=(case.rank,),
        victims=others,
        group=_parts.group(job.survey, case.key),
        position=case.position or None,
        where=(*seen, *_parts.where(case.rank, case.call, _parts.says("arrives_late"))),
        cost=Cost(round(case.lost_s, 2), "s blocked"),
        evidence=tuple(
            EvidenceItem(
                "watch" if case.suspended else "inspector", file, _TEXTS.phrase("pauses" if case.suspended else "times")
            )
            for file in case.files
        ),
    )


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    if not waits or not stall.unclear:
        return None
    return left_open(_TEXTS.phrase("maybe", who=stall.unclear), _MISSING, basis=stall.unclear_basis)


CAUSE = declared(__file__, explain, decide)
