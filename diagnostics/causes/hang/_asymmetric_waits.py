"""Ranks that disagree about collectives, as the wait-for graph, DDP's messages and the ends of ranks show it.

Where the calls of the ranks themselves differ, the divergence shows more; see `diagnostics.analysis.divergence`.
"""

from diagnostics.analysis.stall.blameless import RootDiffers
from diagnostics.analysis.stall.departure import EarlierStep, EndedInRound, MoreCalls, RoundUnknown
from diagnostics.analysis.stall.endings import DdpUnused, FirstEndings, line
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.late import RanAhead
from diagnostics.analysis.stall.missed_call import MissedCall
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._asymmetric import remedy, unused_parameters
from diagnostics.causes.hang._proviso import assuming
from diagnostics.contract.findings import Finding, Remedy, Text, Where, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb
from diagnostics.evidence.model import shortened

_CONDITIONAL, _UNEVEN = "hang.conditional_collective", "hang.uneven_iterations"
_AGREE_ON_STEPS = Remedy(
    "code",
    "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches)",
    "each rank must run the loop equally often",
)


def conditional(stall: Stall, cause: str) -> list[Finding]:
    """Return findings on calls that only some ranks make.

    Such a call is missed in a cycle of waits, is made by few ranks, or is made after others ended.
    """
    findings = [_missed(stall, wait) for wait in stall.circular if isinstance(wait, MissedCall)]
    if stall.ahead is not None:
        findings.append(_ahead(stall, stall.ahead))
    findings = [assuming(stall.job, finding) for finding in findings]
    if isinstance(stall.departure, MoreCalls) and stall.departure.kind == "added":
        findings.append(_more(stall, stall.departure))
    return findings


def uneven(stall: Stall, cause: str) -> list[Finding]:
    """Ranks that ended in order a round of the loop before or after the others."""
    left, job = stall.departure, stall.job
    exited = _exited(stall)
    if left is None or exited is None or job.evidence.doubt:
        return []
    if isinstance(left, MoreCalls):
        return [_more(stall, left)] if left.kind == "another round" else []
    if isinstance(left, RoundUnknown):
        facts = worded(_round_unknown_text, case=left)
        victims = exited.victims
        return [Finding(cause=cause, status="undecided", facts=facts, confidence=0.0, victims=victims)]
    evidence = tuple(end.evidence for end in exited.endings[:6])
    if isinstance(left, EarlierStep):
        return [
            Finding(
                cause=cause,
                status="confirmed",
                facts=worded(_earlier_step_text, case=left),
                confidence=0.9,
                ranks=exited.culprits,
                victims=left.peers,
                step=left.step,
                where=(*_parts.last_places(left.last)[:1], *_parts.where(left.peer, left.peer_call)),
                cost=job.cost(),
                evidence=(*evidence, *_parts.dumps(job.survey, {left.peer: f"in step {left.peer_step}"})),
            )
        ]
    if left.over:
        return []
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=worded(_between_rounds_text, case=left),
            confidence=0.85 if left.last.site is not None and left.size > 1 else 0.7,
            ranks=left.ranks,
            victims=exited.victims,
            where=(
                *_parts.where(left.ranks[0], left.last, f"made {left.last.text} last"),
                *_parts.where(left.peer, left.pending, f"waits in {left.pending.text}"),
            ),
            cost=job.cost(),
            evidence=(*evidence, *_parts.dumps(job.survey, {left.peer: f"waits in {left.pending.text}"})),
        )
    ]


def root_differs(stall: Stall, cause: str) -> list[Finding]:
    """Rooted operations whose root the ranks do not agree on."""
    job, findings = stall.job, []
    for case in stall.roots_differ:
        ranks = (case.deviating,) if case.deviating is not None else case.waiting
        both = (*ranks[:1], *[rank for rank in case.waiting if rank not in ranks][:1])
        stuck = dict.fromkeys(case.waiting[:2], f"#{case.operation.seq} did not complete")
        findings.append(
            Finding(
                cause=cause,
                status="confirmed",
                facts=worded(_root_differs_text, case=case),
                confidence=0.7 if case.deviating is not None else 0.6,
                ranks=ranks,
                victims=tuple(rank for rank in case.members if rank not in ranks),
                group=_parts.group(job.survey, case.operation.key),
                position=case.operation.seq,
                where=tuple(place for rank in both for place in _parts.where(rank, case.calls[rank])),
                cost=job.cost(),
                evidence=_parts.dumps(job.survey, {**stuck, case.complete[0]: f"#{case.operation.seq} completed"}),
            )
        )
    return findings


def ddp_unused(stall: Stall, cause: str) -> list[Finding]:
    """DDP itself printed that gradients were missing."""
    job, case = stall.job, stall.ddp_unused
    if case is None:
        return []
    places = [(end.rank, frame, end.what) for end in case.endings if (frame := line(end)) is not None]
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=worded(_ddp_unused_text, case=case, is_dtk_run=job.is_dtk_run),
            confidence=0.95,
            ranks=case.ranks,
            victims=tuple(sorted(set(range(job.world())) - set(case.ranks))),
            where=tuple(place for rank, frame, what in places for place in _parts.where(rank, frame, what)),
            cost=job.cost(),
            evidence=_parts.lines(case.facts[:4]),
        )
    ]


def _exited(stall: Stall) -> FirstEndings | None:
    return next((case for case in stall.endings if all(end.in_order for end in case.endings)), None)


def _missed(stall: Stall, case: MissedCall) -> Finding:
    job, here, there = stall.job, case.here, case.there
    waits = f"waits in {there.text}"
    where = (
        *_parts.where(case.ranks[0], here, f"is already in {here.text}"),
        *_parts.where(case.peers[0], there, waits),
    )
    stuck = set(job.pending_ranks()) | job.waits.reaching(case.ranks) | set(case.ranks)
    return Finding(
        cause=_CONDITIONAL,
        status="confirmed",
        facts=worded(_missed_text, case=case),
        confidence=0.85 if case.majority is None or case.majority > 0 else 0.8,
        ranks=case.culprits,
        victims=tuple(sorted(stuck - set(case.culprits))),
        group=_parts.group(job.survey, there.key),
        position=there.seq,
        where=tuple(sorted(where, key=lambda place: place.rank not in case.culprits)),
        cost=job.cost(),
        evidence=_parts.dumps(job.survey, {case.ranks[0]: f"waits in {here.text}", case.peers[0]: waits}),
    )


def _ahead(stall: Stall, case: RanAhead) -> Finding:
    job, peer = stall.job, case.others[0]
    last: tuple[Where, ...] = _parts.where(peer, case.last, f"made {case.last.text} last") if case.last else ()
    return Finding(
        cause=_CONDITIONAL,
        status="confirmed",
        facts=worded(_ahead_text, case=case),
        # Half sure: the few may be right, and the others late. More where gloo leaves out what the others may wait in.
        confidence=0.65 if case.may_be_unrecorded else 0.55,
        ranks=case.ranks,
        victims=case.others,
        group=_parts.group(job.survey, case.operation.key),
        position=case.operation.seq,
        where=(*_parts.where(case.ranks[0], case.call), *last),
        cost=job.cost(),
        evidence=_parts.dumps(job.survey, {case.ranks[0]: f"waits in {case.call.text}", peer: "nothing pending"}),
    )


def _more(stall: Stall, case: MoreCalls) -> Finding:
    job, first, there = stall.job, case.extra[0], case.there
    exited = _exited(stall)
    last = f"{'made' if case.agreeing else 'ended after'} {there.text} (#{there.seq})"
    details = {case.ranks[0]: f"#{first.seq} is {first.text}", case.ended[0]: last}
    confidence = 0.95 if case.agreeing else 0.85 if case.by_chance else 0.8
    return Finding(
        cause=_CONDITIONAL if case.kind == "added" else _UNEVEN,
        status="confirmed",
        facts=worded(_more_text, case=case),
        confidence=confidence if case.kind == "added" else 0.7,
        ranks=case.ranks,
        victims=case.ended,
        group=_parts.group(job.survey, first.key),
        position=first.seq,
        step=first.step,
        where=(*_parts.where(case.ranks[0], first), *_parts.where(case.ended[0], there, last)),
        cost=job.cost(),
        evidence=(
            *_parts.dumps(job.survey, details),
            *(end.evidence for end in (exited.endings[:6] if exited else ())),
        ),
    )


def _missed_text(finding: Finding, case: MissedCall) -> Text:
    ranks, peers, there = case.ranks, case.peers, case.there
    majority, group = case.majority, there.key.label
    summary = (
        f"{sentence(ranks_spoken(ranks))} left out {there.cited()} in group {group}, which {ranks_spoken(peers)} "
        f"{verb(peers, 'waits', 'wait')} in; {verb(ranks, 'it is', 'they are')} already in "
        f"{case.here.cited()}."
    )
    if majority == 0:
        summary += " It is a tie: either the call or its absence may be the wrong one."
    elif majority is not None and majority < 0:
        summary += f" Only {ranks_spoken(peers)} {verb(peers, 'makes', 'make')} it in this round."
    return Text(
        summary=summary,
        measured=f"{counted(len(ranks), 'rank')} went past position {there.seq} of group {group}",
        remedies=(remedy("left_out", call=there.text, place=there.place),),
    )


def _ahead_text(finding: Finding, case: RanAhead) -> Text:
    ranks, others = case.ranks, case.others
    summary = (
        f"Only {ranks_spoken(ranks)} {verb(ranks, 'calls', 'call')} {case.call.cited()}; {ranks_spoken(others)} "
        f"made no call after {case.last.cited() if case.last else 'the start'}."
    )
    if case.may_be_unrecorded:
        summary += " They may wait in a monitored_barrier, send or recv, which gloo's recorder leaves out."
    reach = f"call {case.call.text} at {case.call.place}" if case.call.site else f"reach {case.call.text}"
    change = f"let all ranks {reach}, and what stands before it"
    return Text(
        summary=summary,
        measured=f"{len(ranks)} of {len(ranks) + len(others)} ranks reached position {case.operation.seq}",
        remedies=(Remedy("code", change, "the other ranks agree with each other and are not there"),),
    )


def _more_text(finding: Finding, case: MoreCalls) -> Text:
    ranks, first = case.ranks, case.extra[0]
    who, ended = ranks_spoken(ranks), ranks_spoken(case.ended)
    more = len(case.extra)
    if case.kind == "another round":
        return Text(
            summary=(
                f"{sentence(who)} {verb(ranks, 'goes', 'go')} on with another round: {first.cited()}, while "
                f"{ended} ended in order after {case.there.cited()}."
            ),
            measured=f"{more} calls more than on the {len(case.ended)} ranks that ended",
            remedies=(_AGREE_ON_STEPS,),
        )
    summary = f"Only {who} {verb(ranks, 'calls', 'call')} {first.cited()}"
    summary += f" and {more - 1} more" if more > 1 else ""
    summary += f"; {ended} never {verb(case.ended, 'does', 'do')}."
    if case.by_chance:
        earlier = counted(case.by_chance, "earlier call")
        summary += f" {earlier} from there fitted other calls of {ended} by chance."
    elif case.agreeing:
        summary += f" Without {'it' if more == 1 else 'them'} all {case.agreeing} later calls agree again."
    if case.pending is not first and not case.by_chance:
        waits = f"now {verb(ranks, 'waits', 'wait')} in {case.pending.cited()}"
        summary += f" {sentence(who)} {waits}, and the others ended in order."
    return Text(
        summary=summary,
        measured=f"{more} more than on {ended}; {case.agreeing} later calls agree",
        remedies=(remedy("added", call=first.text, place=first.place),),
    )


def _earlier_step_text(finding: Finding, case: EarlierStep) -> Text:
    waits = f" and waits in {case.peer_call.cited()}" if case.peer_call else ""
    return Text(
        summary=(
            f"{sentence(ranks_spoken(finding.ranks))} ended in order after step {case.step}, while rank "
            f"{case.peer} went on with step {case.peer_step}{waits}."
        ),
        measured=f"step {case.step} against {case.peer_step}",
        remedies=(_AGREE_ON_STEPS,),
    )


def _between_rounds_text(finding: Finding, case: EndedInRound) -> Text:
    round_of = counted(case.size, "call")
    return Text(
        summary=(
            f"{sentence(ranks_spoken(case.ranks))} left the loop between two rounds of {round_of}, after "
            f"{case.last.cited()}, and ended in order, while rank {case.peer} went on with another round: "
            f"{case.pending.cited()}."
        ),
        measured=f"{case.rounds} whole rounds of {round_of}, and none begun",
        remedies=(_AGREE_ON_STEPS,),
    )


def _round_unknown_text(finding: Finding, case: RoundUnknown) -> Text:
    ranks = case.ranks
    it, their = verb(ranks, "it", "they"), verb(ranks, "its", "their")
    why = "left no dump" if case.no_dump else "made calls that do not show where a round of a loop begins"
    missing = "where each step begins: dtk watch -- COMMAND"
    if case.no_dump:
        missing = (
            f"the calls of {ranks_spoken(ranks)} up to {their} end: a flight dump at exit, or dtk watch -- "
            "torchrun ..., whose rings stay behind"
        )
    return Text(
        summary=(
            f"{sentence(ranks_spoken(ranks))} {why}: whether {it} left {their} loop a round before the others, or "
            "ended elsewhere, cannot be told."
        ),
        missing=missing,
    )


def _root_differs_text(finding: Finding, case: RootDiffers) -> Text:
    call = case.calls[case.waiting[0]]
    side = "source" if call.wire.op in {"broadcast", "scatter"} else "destination"
    which = "Which of them differs is not recorded: a tie."
    if case.deviating is not None:
        which = f"If the common {side} is rank {case.members[0]}, rank {case.deviating} names another one."
    at = f" at {call.place}" if call.site else ""
    return Text(
        summary=(
            f"{sentence(ranks_spoken(case.waiting))} hang in {call.cited()}, which {ranks_spoken(case.complete)} "
            f"completed: all made the call, so they do not agree on its {side}. {which}"
        ),
        measured=f"completed on {len(case.complete)} of {len(case.members)} ranks",
        remedies=(Remedy("code", f"pass the same {side} on every rank{at}", "all ranks must name the same root"),),
    )


def _ddp_unused_text(finding: Finding, case: DdpUnused, is_dtk_run: bool) -> Text:
    who = sentence(ranks_spoken(case.ranks)) if case.ranks else "A rank"
    names = f" ({shortened(case.names, 120)})" if case.names else ""
    return Text(
        summary=(
            f"{who} ran the backward pass without a gradient for some parameters{names}, so DDP could not finish "
            "its reduction."
        ),
        measured=f"{len(case.facts)} messages of DDP",
        remedies=unused_parameters("", is_dtk_run=is_dtk_run),
    )
