"""Findings about hangs for which only NCCL watchdog messages remain; shared by several causes."""

from typing import Any, Literal

from diagnostics.analysis.divergence.identity import agree, differing_parts
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.symptoms import SCALAR
from diagnostics.analysis.stall.watchdog import (
    WatchdogDecided,
    WatchdogDrift,
    WatchdogGap,
    WatchdogMismatch,
    WatchdogMissed,
    WatchdogOpen,
    WatchdogSites,
)
from diagnostics.analysis.stall.watchdog_lines import UNNAMED, GroupLog, Wait
from diagnostics.causes.declared import Texts
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import WATCHDOGS, EvidenceItem, Facts, Finding, FormattedFacts, Group, Where
from diagnostics.contract.formatting import counted

_TEXTS = Texts(__file__)
DUMPS, ALL_RANKS_CALL = _TEXTS.phrase("dumps"), _TEXTS.phrase("all_ranks_call")


def findings(stall: Stall, shows: Literal["operations", "arguments", "fewer calls"]) -> list[Finding]:
    """Return findings about ranks that differ in `shows`: operations or source lines, arguments, number of calls."""
    case = stall.watchdog
    if isinstance(case, WatchdogMismatch):
        kind, change = ("operations", "other_call") if _is_other_call(case) else ("arguments", "other_size")
        facts = _disagree(case, change)
    elif isinstance(case, WatchdogMissed):
        other = (called(case.other), named(case.other_group))
        kind, facts = "fewer calls", _TEXTS.facts("missed", other=other[0], other_group=other[1], **figures(case))
    elif isinstance(case, WatchdogDrift | WatchdogSites):
        kind, facts = "fewer calls" if isinstance(case, WatchdogDrift) and case.fewer else "operations", _drifted(case)
    else:
        opened = [case.group] if isinstance(case, WatchdogOpen) else []
        return [Finding(status="undecided", facts=_unclear(group), confidence=0.0) for group in opened]
    return [confirmed(case, facts)] if kind == shows else []


def _is_other_call(case: WatchdogMismatch) -> bool:
    """Return whether the ranks made different calls, rather than the same call with different arguments.

    A metric or a barrier has one element, so it is never the same call as the gradient reduction that it meets. Two
    lines of the program are two calls, and ranks that make the same calls enqueue equally many after this one.
    """
    majority, minority, *_ = _sides(case)
    few, many = sorted(wait.numel or 0 for wait in (majority, minority))
    lines = {wait.site for wait in (majority, minority) if wait.site is not None}
    ahead = [
        {case.group.counters[rank].enqueued for rank in side if rank in case.group.counters} for side in case.vote.sides
    ]
    return (
        "operation" in differing_parts(majority.wire, minority.wire)
        or (few == 1 and many > SCALAR)
        or len(lines) > 1
        or (all(ahead) and ahead[0].isdisjoint(set().union(*ahead[1:])))
    )


def _sides(case: WatchdogMismatch) -> tuple[Wait, ...]:
    return tuple(case.group.waits[side[0]] for side in case.vote.sides)


def _disagree(case: WatchdogMismatch, change: str) -> FormattedFacts:
    vote, group = case.vote, case.group
    waits = [
        _TEXTS.phrase("waits", side=side, call=called(group.waits[side[0]]))
        for side in (*vote.sides[1:4], vote.sides[0])
    ]
    barrier = any(wait.numel == 1 and wait.name == "all_reduce" for wait in _sides(case))
    rows = ("disagree", *(["barrier"] if barrier else []), *(["tie"] if vote.tie else []), change)
    figures = {"few": waits[:-1], "most": waits[-1], "group": named(group), "dumps": DUMPS}
    counts = " against ".join(str(len(side)) for side in vote.sides)
    majority, minority, *_ = map(called, _sides(case))
    return _TEXTS.facts(rows, vote=vote, counts=counts, majority=majority, minority=minority, **figures)


def _drifted(case: WatchdogDrift | WatchdogSites) -> FormattedFacts:
    others = [rank for rank in case.members if rank not in case.culprits]
    if isinstance(case, WatchdogSites):
        minority, majority = (case.sites[side[0]] for side in (case.culprits, others))
        return _TEXTS.facts(
            ("sites", "diverged"), case=case, others=others, minority=minority, majority=majority, dumps=DUMPS
        )
    rows, call = ("drift", "fewer" if case.fewer else "another", "diverged"), case.call
    group, named_call = named(case.group), called(call)
    return _TEXTS.facts(rows, case=case, others=others, group=group, named_call=named_call, dumps=DUMPS)


def _unclear(group: GroupLog) -> FormattedFacts:
    waits = sorted(group.waits.values(), key=lambda wait: (wait.seq, wait.rank))
    first, last = waits[0], waits[-1]
    row = "same_call" if all(agree(first.wire, wait.wire) for wait in waits) else "maybe_other_calls"
    row = "mixed" if group.mixed else "other_position" if first.seq != last.seq else row
    figures = {"first": first, "last": last, "call": called(first), "group": named(group), "dumps": DUMPS}
    return _TEXTS.facts(row, waiting=group.waits, **figures)


def confirmed(case: WatchdogDecided, facts: Facts) -> Finding:
    """Return a confirmed finding, with the log lines that show it."""
    confidence, group, position = WATCHDOGS["apart"], None, None
    match case:
        case WatchdogMismatch():
            majority, minority, *others = _sides(case)
            confidence = WATCHDOGS["unnamed" if case.vote.tie or case.group.name == UNNAMED else "named"]
            position, places = case.vote.position, (*_where(minority), *_where(majority))
            evidence = [_line(wait) for wait in (minority, *others[:2], majority)]
        case WatchdogMissed():
            confidence, position = WATCHDOGS["unnamed"], case.call.seq
            places = (*_where(case.other), *_where(case.call))
            evidence = [_line(case.other), _line(case.call)]
        case WatchdogGap():
            position, places = case.call.seq, _where(case.call)
            last = case.group.counters[case.behind[0]]
            progress = _TEXTS.phrase("progress", rank=case.behind[0], last=last)
            evidence = [EvidenceItem("log", last.fact.file, progress, last.fact.line), _line(case.call)]
        case WatchdogDrift():
            position, places = case.call.seq, _where(case.call)
            counters = [case.group.counters[rank].fact for rank in case.members if rank in case.group.counters]
            evidence = [_line(case.call), *_parts.lines(counters[:3])]
        case WatchdogSites():
            evidence = []
            shown = sorted(case.sites.items(), key=lambda item: item[0] not in case.culprits)
            places = tuple(place for rank, site in shown for place in _parts.where(rank, site, case.op))
    if not isinstance(case, WatchdogSites) and case.group.name != UNNAMED:
        group = Group(case.group.name, case.members, case.group.desc)
    return Finding(
        status="confirmed",
        facts=facts,
        confidence=confidence,
        ranks=case.culprits,
        victims=tuple(rank for rank in case.members if rank not in case.culprits),
        group=group,
        position=position,
        where=places,
        evidence=tuple(evidence),
    )


def figures(case: WatchdogGap | WatchdogMissed) -> dict[str, Any]:
    """Return the figures for texts about ranks that did not reach a call."""
    names = {"named_call": called(case.call), "group": named(case.group), "last": case.call.seq - 1}
    return {"case": case, "all_ranks_call": ALL_RANKS_CALL, "dumps": DUMPS, **names}


def named(group: GroupLog) -> str:
    """Return `group default_pg`."""
    return str(_TEXTS.phrase("default_group")) if group.name == UNNAMED else f"group {group.title}"


def called(wait: Wait) -> str:
    """Return `all_reduce of 1,024 elements`."""
    size = f" of {counted(wait.numel, 'element')}" if wait.numel is not None and wait.even else ""
    return f"{wait.name}{size}"


def _line(wait: Wait) -> EvidenceItem:
    if wait.fact.kind == "desync_state":
        return wait.fact.quoted()
    numel = f", NumelIn={wait.numel}" if wait.numel is not None else ""
    return EvidenceItem("log", wait.fact.file, _TEXTS.phrase("line", wait=wait, numel=numel), wait.fact.line)


def _where(wait: Wait) -> tuple[Where, ...]:
    return _parts.where(wait.rank, wait.site, called(wait))
