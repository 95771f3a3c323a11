"""A send or receive waits for a counterpart that is never posted, in a cycle or on one side only."""

from msgspec import Struct

from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import InCollective, communicating
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._messages import figures, finding
from diagnostics.contract.findings import CERTAIN, CITED, LIKELY, SUSPECTED, EvidenceItem, Finding
from diagnostics.contract.formatting import file_name, joined
from diagnostics.evidence.calls import TRANSFERS

_TEXTS = Texts(__file__)


class UnrecordedTransfer(Struct, frozen=True):
    """Ranks that wait in sends or receives, while no rank is left to post the counterpart."""

    direction: str
    """Direction of the transfers: `send` or `recv`; empty if the ranks wait in both."""
    ranks: dict[int, InCollective]
    """Location of each of these ranks."""
    waiting: tuple[int, ...]
    """The other ranks, which wait for these."""
    world_known: bool
    """Whether anything besides the files themselves gives the world size."""


def decide(stall: Stall) -> list[Finding]:
    """Decide from cycles of the wait-for graph with sends and receives, or else from stacks."""
    waits = [wait for wait in stall.circular if isinstance(wait, PointToPoint) and not wait.of_stages]
    findings = [finding(stall, wait, _TEXTS.facts(**figures(wait))) for wait in waits]
    if (transfer := unrecorded_transfer(stall.job)) is not None:
        findings.append(_unrecorded(stall, transfer))
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


def unrecorded_transfer(job: JobState) -> UnrecordedTransfer | None:
    """Find ranks that all wait in a send or all in a receive, while the rest waits for them or is empty.

    If all ranks wait in sends or receives, no rank is left to post what another one waits for.
    """
    places, world = communicating(job), job.world()
    inside = {rank: place for rank, place in places.items() if place.op in TRANSFERS}
    directions = {place.op.removeprefix("i") for place in inside.values()}
    world_known = bool(job.evidence.world_size or job.survey.world())
    both = len(inside) == world and world_known
    if not job.hangs() or world < 2 or (len(directions & {"send", "recv"}) != 1 and not both):
        return None
    rest = tuple(rank for rank in range(world) if rank not in inside)
    has_exited = any(rank in job.endings and job.endings[rank].exited_early for rank in rest)
    # Or all the rest stand in one collective: gloo marks a failed call as completed, so its dumps do not show it.
    calls = [(places[rank].op, places[rank].site) if rank in places else None for rank in rest]
    together = len(set(calls)) == 1 and None not in calls
    if has_exited or not (together or set(rest) <= job.waits.reaching(inside)):
        return None
    return UnrecordedTransfer(directions.pop() if len(directions) == 1 else "", inside, rest, world_known)


def _unrecorded(stall: Stall, case: UnrecordedTransfer) -> Finding:
    # By stacks: some ranks wait in a collective instead, or in both halves, whose ends the stacks do not show.
    confidence = LIKELY if case.waiting or not case.direction else CERTAIN
    ranks = list(case.ranks.items())
    waits = {rank: _parts.says("waits_in", what=seen.op) for rank, seen in ranks}
    sites = [rank.site for rank in case.ranks.values() if rank.site is not None]
    first, row = next(iter(sites), None), "all" if case.world_known else "all_logged"
    return _parts.confirmed(
        stall.job,
        _TEXTS.facts(
            "beside" if case.waiting else row if case.direction in ("send", "recv") else "both",
            case=case,
            place=f" ({file_name(first.file)}:{first.line})" if first else "",
            places=joined(dict.fromkeys(f"{file_name(site.file)}:{site.line}" for site in sites)),
            at=f"{first.file}:{first.line}" if first else "these calls",
            other="sends" if case.direction == "recv" else "receives",
            count=len(case.ranks) + len(case.waiting),
        ),
        confidence if case.world_known else SUSPECTED,
        basis="messages",
        evidence=[
            EvidenceItem(seen.kind, seen.file, _parts.says("of_rank", rank=rank, what=waits[rank]))
            for rank, seen in ranks[:CITED]
        ],
        ranks=tuple(case.ranks),
        victims=case.waiting,
        where=_parts.places((rank, seen.site, waits[rank]) for rank, seen in ranks[:CITED]),
    )


CAUSE = declared(__file__, explain, decide)
