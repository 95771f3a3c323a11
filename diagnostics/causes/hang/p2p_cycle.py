"""A send or receive waits for a counterpart that is never posted, in a cycle or on one side only."""

from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import communicating
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._messages import figures, finding
from diagnostics.contract.findings import ASSUMED, CERTAIN, CITED, SUSPECTED, EvidenceItem, Finding
from diagnostics.contract.formatting import file_name, joined
from diagnostics.evidence.calls import TRANSFERS

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> list[Finding]:
    """Decide from cycles of the wait-for graph with sends and receives, or else from stacks."""
    waits = [wait for wait in stall.circular if isinstance(wait, PointToPoint) and not wait.of_stages]
    findings = [finding(stall, wait, _TEXTS.facts(**figures(wait))) for wait in waits]
    if stall.job.hangs() and stall.job.world() > 1 and (unrecorded := _unrecorded(stall.job)) is not None:
        findings.append(unrecorded)
    return findings or [_parts.unconfirmed(stall, _parts.UNRECORDED, otherwise=_otherwise)]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    """Return undecided if gloo may not have recorded the send or receive that a rank waits in; otherwise None."""
    missing = _parts.recording(stall.job.evidence, _parts.UNRECORDED)
    unseen = [rank for rank in sorted(stall.job.survey.ranks) if stall.job.may_be_unrecorded(rank)]
    if not waits and unseen and not stall.job.behind():
        return _parts.left_open(_TEXTS.phrase("maybe", who=unseen), missing)
    if not waits or not any(stall.job.may_be_unrecorded(rank) for rank in stall.unexplained):
        return None
    return _parts.left_open(
        _TEXTS.phrase("maybe_unclear", who=stall.unexplained), missing, basis=stall.unexplained_basis
    )


def _unrecorded(job: JobState) -> Finding | None:
    """Return the finding about ranks that all wait in a send or all in a receive, while the rest waits for them.

    If all ranks wait in sends or receives, no rank is left to post what another one waits for. Stacks alone show it.
    """
    places, world = communicating(job), job.world()
    inside = {rank: place for rank, place in places.items() if place.op in TRANSFERS}
    directions = {place.op.removeprefix("i") for place in inside.values()}
    world_known = bool(job.evidence.world_size or job.survey.world())
    if len(directions & {"send", "recv"}) != 1 and not (world_known and len(inside) == world):
        return None
    rest = tuple(rank for rank in range(world) if rank not in inside)
    has_exited = any(rank in job.endings and job.endings[rank].exited_early for rank in rest)
    # Or all the rest stand in one collective: gloo marks a failed call as completed, so its dumps do not show it.
    calls = [(places[rank].op, places[rank].site) if rank in places else None for rank in rest]
    together = len(set(calls)) == 1 and None not in calls
    if has_exited or not (together or set(rest) <= job.waits.reaching(inside)):
        return None
    waits = {rank: _parts.says("waits_in", what=seen.op) for rank, seen in inside.items()}
    sites = dict.fromkeys((seen.site.file, seen.site.line) for seen in inside.values() if seen.site is not None)
    named, direction = [f"{file_name(file)}:{line}" for file, line in sites], next(iter(directions), "")
    # Calls of one line are in no order that could let one of them go on. Of others, one may have been skipped.
    row = "beside" if rest else "all_logged" if not world_known else "both" if len(sites) > 1 else "all"
    return _parts.confirmed(
        job,
        _TEXTS.facts(
            row,
            direction=direction,
            waiting=rest,
            place=f" ({named[0]})" if named else "",
            places=joined(named),
            at=":".join(map(str, next(iter(sites)))) if sites else "these calls",
            other="sends" if direction == "recv" else "receives",
            count=world,
        ),
        SUSPECTED if not world_known else ASSUMED if rest or len(sites) > 1 else CERTAIN,
        basis="messages",
        evidence=[
            EvidenceItem(seen.kind, seen.file, _parts.says("of_rank", rank=rank, what=waits[rank]))
            for rank, seen in [*inside.items()][:CITED]
        ],
        ranks=tuple(inside),
        victims=rest,
        where=_parts.places((rank, seen.site, waits[rank]) for rank, seen in [*inside.items()][:CITED]),
    )


CAUSE = declared(__file__, explain, decide)
