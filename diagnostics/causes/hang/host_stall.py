"""A rank is alive, waits in no collective, and never reached the collective that the others wait in."""

from time import time

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import STALL_S
from diagnostics.analysis.stall.late import HostStall
from diagnostics.analysis.stall.stack_evidence import HostOutside
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._divergence import DUMPS
from diagnostics.contract import findings as level
from diagnostics.contract.findings import CITED, Cost, EvidenceItem, Finding, FormattedFacts, confirmed
from diagnostics.evidence.model import RunEvidence
from diagnostics.evidence.stacks.activity import Activity, phrase

_TEXTS = Texts(__file__)
_MISSING = _TEXTS.phrase("stacks")


def _late_host(case: HostStall) -> FormattedFacts:
    call, at, label = case.call, case.activity, case.operation.key.label
    missed = _TEXTS.phrase("other_half" if call.p2p else "missed", call=call)
    since = _TEXTS.phrase("before" if case.operation.seq > 1 else "at_start", seq=case.operation.seq, group=label)
    if case.last is not None:
        since = _TEXTS.phrase("after", call=case.last)
    elif case.issued > 0:
        since = _TEXTS.phrase("after_position", seq=case.issued, group=label)
    rows = ["seen" if at.frame or case.has_stack else "logged" if case.lines else "unseen"]
    if rows == ["unseen"]:
        rows += [name for name, holds in (("failed", case.failed), ("unrecorded", case.may_be_unrecorded)) if holds]
    look = _TEXTS.phrase("look", ranks=case.ranks, since=since)
    figures = {"missed": missed, "doing": _parts.doing(at, explained=True), "fix": _parts.fix(at, look), "dumps": DUMPS}
    return _TEXTS.facts(rows, case=case, **figures)


def decide(stall: Stall) -> list[Finding]:
    """Decide from roots of the wait-for graph without pending calls, their stacks, and watchdog messages."""
    if (run := stall.job.evidence.run) is not None and run.suspended:
        return [_suspended(run)]
    findings = list[Finding]()
    if stall.stacks is not None:
        findings.append(_outside(stall.stacks))
    if stall.host is not None:
        findings.append(_parts.assuming(stall.job, _finding(stall, stall.host)))
    return findings or [_parts.unconfirmed(stall, _MISSING, silent=True)]


def _finding(stall: Stall, case: HostStall) -> Finding:
    job, first, at = stall.job, case.ranks[0], case.activity
    waits = _parts.says("waits_in", what=case.call.text)
    if at.frame is not None:
        place = _parts.where(first, at.frame, _parts.says("is_there", what=at.words))
    else:
        place = _parts.where(first, case.last, _parts.says("last_called", what=case.last.text) if case.last else None)
    stack = EvidenceItem("stacks", case.stack_file, _parts.says("of_rank", rank=first, what=_parts.doing(at)))
    # One rank that waits for several may have made a call of its own.
    seen = level.PLAUSIBLE if len(case.waiting) == 1 < len(case.ranks) else level.SEEN
    return _parts.confirmed(
        job,
        _late_host(case),
        # It may have exited, or be in a call that gloo does not record.
        seen if case.has_stack else level.WATCHDOGS["apart"] if case.lines else level.OPEN,
        basis="records" if case.has_stack or case.lines else "places",
        seen={**dict.fromkeys(case.ranks, _parts.says("nothing_pending")), case.waiting[0]: waits},
        evidence=[stack] if case.stack_file else _parts.lines(case.lines),
        ranks=case.ranks,
        victims=tuple(sorted({*case.waiting, *job.waits.reaching(case.ranks)} - {*case.ranks})),
        group=_parts.group(job.survey, case.operation.key),
        position=case.operation.seq if case.operation.peer < 0 else None,
        step=job.step_of(first),
        where=(*place, *_parts.where(case.waiting[0], case.call, waits)),
    )


def _suspended(run: RunEvidence) -> Finding:
    ranks = run.suspended
    silent_s = max(0.0, time() - max(run.heartbeats[rank].time_s for rank in ranks))
    at = Activity("stopped", phrase("stopped"), None)
    return confirmed(
        facts=_TEXTS.facts("suspended", ranks=ranks, silent_s=silent_s, doing=at.words, fix=_parts.fix(at)),
        confidence=level.SEEN,
        ranks=ranks,
        victims=tuple(sorted(set(run.heartbeats) - set(ranks))),
        step=run.heartbeats[ranks[0]].step,
        cost=Cost(round(silent_s, 1), "s blocked"),
    )


def _outside(case: HostOutside) -> Finding:
    waiting = min(case.holders or case.inside)
    place, ranks = case.inside[waiting], case.holders or case.ranks
    unsure = case.working or not place.site
    # A single stack, in a job that hangs by other evidence.
    seen = level.SEEN if case.blocked_s >= STALL_S else level.PLAUSIBLE
    seen_at = [(r, at.frame, _parts.says("is_there", what=at.words)) for r, at in case.activities.items()][:CITED]
    stacks = [
        EvidenceItem("stacks", case.files[rank], _parts.says("of_rank", rank=rank, what=_parts.doing(at)))
        for rank, at in case.activities.items()
    ]
    stands_in = _TEXTS.phrase("stands_in", rank=waiting, place=_parts.described(place))
    waits = EvidenceItem(place.kind, place.file, stands_in, place.line)
    first = case.activities[case.ranks[0]]
    facts = _TEXTS.facts(
        "holds" if case.holders else ("outside", "working") if case.working else "outside",
        case=case,
        place=_parts.described(place),
        op=place.op,
        waited=_TEXTS.phrase("waited", case=case) if case.blocked_s >= STALL_S else "",
        doing=_parts.doing(first, explained=True),
        fix=_parts.fix(first),
    )
    return confirmed(
        facts=facts,
        confidence=level.OPEN if unsure else seen,
        ranks=ranks,
        victims=tuple(rank for rank in (*case.inside, *case.ranks) if rank not in ranks),
        where=_parts.places([*seen_at, (waiting, place.site, _parts.says("waits_in", what=place.op))]),
        evidence=(*stacks, waits)[:CITED],
        basis="places",
    )


CAUSE = declared(__file__, explain, decide)
