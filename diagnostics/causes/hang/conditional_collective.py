"""A collective that only some ranks issue."""

from diagnostics.analysis.stall.departure import MoreCalls
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.late import RanAhead
from diagnostics.analysis.stall.missed_call import MissedCall
from diagnostics.analysis.stall.watchdog import WatchdogGap
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.hang import _divergence, _parts, _stacks, _watchdog
from diagnostics.causes.hang._divergence import Disagreement, Reading
from diagnostics.causes.hang._more_calls import more_calls
from diagnostics.causes.hang._proviso import assuming
from diagnostics.contract.findings import Finding, Remedy, Text, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb

ID = "hang.conditional_collective"
_TEXTS = texts_beside(__file__)
_MISSED_CONFIDENCE, _MISSED_BY_MOST_CONFIDENCE = 0.85, 0.8
"""A call that a cycle of waits shows to be missed: on few ranks, or on as many or more as make it."""
_AHEAD_CONFIDENCE, _AHEAD_UNRECORDED_CONFIDENCE = 0.55, 0.65
"""Half sure: the few may be right, and the others late. More where gloo leaves out what the others may wait in."""
_MORE_CONFIDENCE, _MORE_BY_CHANCE_CONFIDENCE, _MORE_AGREEING_CONFIDENCE = 0.8, 0.85, 0.95
"""Calls beyond those of ranks that ended; surer where without them all later calls agree again."""


def _summary(facts: Disagreement) -> str:
    if facts.kind == "added":
        return facts.filled("Only {side} {calls} {first}; {rest} {rest_is} in {theirs}.")
    return facts.filled("{who} left out {first} that {rest} {rest_waits} in; {it_is} already in {mine}.")


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    call = facts.calls[0]
    fix = _divergence.call_unconditionally if facts.kind == "added" else _divergence.call_everywhere
    remedies: tuple[Remedy, ...] = (fix(call.text, call.place),)
    if facts.divergence.explanation.alternatives:  # The line may also stand behind the loop.
        remedies += (_divergence.run_equally_often(facts.divergence.majority.place),)
    return remedies


READING = Reading(ID, ("left_out", "added"), _summary, _remedies, not_this="No call was left out or added: {why}.")


def _missed_text(finding: Finding, case: MissedCall) -> Text:
    ranks, peers, there = case.ranks, case.peers, case.there
    majority, group = case.majority, there.key.label
    summary = (
        f"{sentence(ranks_spoken(ranks))} left out {there.cited()} in group {group}, which {ranks_spoken(peers)} "
        f"{verb(peers, 'waits', 'wait')} in; {verb(ranks, 'it is', 'they are')} already in {case.here.cited()}."
    )
    if majority == 0:
        summary += " It is a tie: either the call or its absence may be the wrong one."
    elif majority is not None and majority < 0:
        summary += f" Only {ranks_spoken(peers)} {verb(peers, 'makes', 'make')} it in this round."
    return Text(
        summary=summary,
        measured=f"{counted(len(ranks), 'rank')} went past position {there.seq} of group {group}",
        remedies=(_divergence.call_everywhere(there.text, there.place),),
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
    ranks, first, more = case.ranks, case.extra[0], len(case.extra)
    who, ended = ranks_spoken(ranks), ranks_spoken(case.ended)
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
        remedies=(_divergence.call_unconditionally(first.text, first.place),),
    )


def decide(stall: Stall) -> list[Finding]:
    """Decide it by the first call in which the ranks differ, and by calls that only some ranks make.

    Such a call is missed in a cycle of waits, is made by few ranks, or is made after others ended.
    """
    case = stall.watchdog
    findings = [*_watchdog.fewer_calls(stall, ID), *_stacks.findings(stall, ID)]
    if isinstance(case, WatchdogGap) and case.few_wait:
        told = _watchdog.told(case, calls=verb(case.waiting, "calls", "call"), last=case.call.seq - 1)
        findings.append(_watchdog.confirmed(case, ID, worded(_TEXTS, **told)))
    calls = [_missed(stall, wait) for wait in stall.circular if isinstance(wait, MissedCall)]
    calls += [_ahead(stall, stall.ahead)] if stall.ahead is not None else []
    findings += [assuming(stall.job, finding) for finding in calls]
    if isinstance(more := stall.departure, MoreCalls) and more.kind == "added":
        confidence = _MORE_BY_CHANCE_CONFIDENCE if more.by_chance else _MORE_CONFIDENCE
        confidence = _MORE_AGREEING_CONFIDENCE if more.agreeing else confidence
        findings.append(more_calls(stall, more, ID, worded(_more_text, case=more), confidence))
    return _divergence.decided(stall, READING, findings, silent=True)


def _missed(stall: Stall, case: MissedCall) -> Finding:
    job, here, there = stall.job, case.here, case.there
    waits = f"waits in {there.text}"
    where = (
        *_parts.where(case.ranks[0], here, f"is already in {here.text}"),
        *_parts.where(case.peers[0], there, waits),
    )
    stuck = set(job.pending_ranks()) | job.waits.reaching(case.ranks) | set(case.ranks)
    few = case.majority is None or case.majority > 0
    return _parts.confirmed(
        job,
        ID,
        worded(_missed_text, case=case),
        _MISSED_CONFIDENCE if few else _MISSED_BY_MOST_CONFIDENCE,
        at=there,
        seen={case.ranks[0]: f"waits in {here.text}", case.peers[0]: waits},
        ranks=case.culprits,
        victims=tuple(sorted(stuck - set(case.culprits))),
        where=tuple(sorted(where, key=lambda place: place.rank not in case.culprits)),
    )


def _ahead(stall: Stall, case: RanAhead) -> Finding:
    last = _parts.where(case.others[0], case.last, f"made {case.last.text} last") if case.last else ()
    return _parts.confirmed(
        stall.job,
        ID,
        worded(_ahead_text, case=case),
        _AHEAD_UNRECORDED_CONFIDENCE if case.may_be_unrecorded else _AHEAD_CONFIDENCE,
        at=case.operation,
        seen={case.ranks[0]: f"waits in {case.call.text}", case.others[0]: "nothing pending"},
        ranks=case.ranks,
        victims=case.others,
        where=(*_parts.where(case.ranks[0], case.call), *last),
    )


CAUSE = declared(__file__, explain, decide)
