"""A collective that only some ranks issue."""

from diagnostics.analysis.stall.departure import MoreCalls
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.late import RanAhead
from diagnostics.analysis.stall.missed_call import MissedCall
from diagnostics.analysis.stall.watchdog import WatchdogGap
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _divergence, _parts, _watchdog
from diagnostics.causes.hang._divergence import Disagreement, Reading
from diagnostics.causes.hang._endings import more_calls
from diagnostics.contract.findings import AHEAD, LIKELY, PROBABLE, SEEN, Finding, FormattedFacts, Remedy

_TEXTS = Texts(__file__)


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    fix, divergence = _divergence.fix_call(facts.calls[0], added=facts.kind == "added"), facts.divergence
    if not divergence.explanation.alternatives:
        return (fix,)
    # The line may also be after the loop.
    return fix, _divergence.TEXTS.remedy("run_equally_often", place=divergence.majority.place)


READING = Reading(_TEXTS, ("left_out", "added"), _remedies, lambda facts: facts.filled(_TEXTS, facts.kind))


def _more(case: MoreCalls) -> FormattedFacts:
    """Return the facts about calls that some ranks made and others did not make before they ended."""
    rows = ["more"]
    if case.by_chance or case.agreeing:
        rows.append("by_chance" if case.by_chance else "agreeing")
    if case.pending is not case.extra[0] and not case.by_chance:
        rows.append("pending")
    first, more = case.extra[0], len(case.extra)
    others = f" and {more - 1} more" if more > 1 else ""
    fix = _divergence.fix_call(first, added=True)
    them = "it" if more == 1 else "them"
    return _TEXTS.facts(rows, case=case, first=first, others=others, more=more, them=them, fix=fix)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, and from calls that only some ranks make.

    Such a call is missed in a cycle of waits, is made by few ranks, or is made after others ended.
    """
    case = stall.watchdog
    findings = _watchdog.findings(stall, "fewer calls")
    if isinstance(case, WatchdogGap) and case.few_wait:
        findings.append(_watchdog.confirmed(case, _TEXTS.facts(**_watchdog.figures(case))))
    calls = [_missed(stall, wait) for wait in stall.circular if isinstance(wait, MissedCall)]
    calls += [_ahead(stall, stall.ahead)] if stall.ahead is not None else []
    findings += [_parts.assuming(stall.job, finding) for finding in calls]
    if isinstance(more := stall.departure, MoreCalls) and more.kind == "added":
        confidence = SEEN if more.agreeing else LIKELY if more.by_chance else PROBABLE  # All later calls agree without.
        findings.append(more_calls(stall, more, _more(more), confidence))
    return _divergence.decided(stall, READING, findings, silent=True)


def _missed(stall: Stall, case: MissedCall) -> Finding:
    job, pending, expected = stall.job, case.pending, case.expected
    waits = _parts.says("waits_in", what=expected.text)
    where = (
        *_parts.where(case.ranks[0], pending, _divergence.TEXTS.phrase("already_in", call=pending.text)),
        *_parts.where(case.peers[0], expected, waits),
    )
    stuck = set(job.pending_ranks()) | job.waits.reaching(case.ranks) | set(case.ranks)
    few = case.majority is None or case.majority > 0
    return _parts.confirmed(
        job,
        _TEXTS.facts(
            ("missed",) if few else ("missed", "tie" if case.majority == 0 else "few"),
            case=case,
            fix=_divergence.fix_call(expected),
        ),
        LIKELY if few else PROBABLE,
        at=expected,
        seen={case.ranks[0]: _parts.says("waits_in", what=pending.text), case.peers[0]: waits},
        ranks=case.culprits,
        victims=tuple(sorted(stuck - set(case.culprits))),
        where=tuple(sorted(where, key=lambda place: place.rank not in case.culprits)),
    )


def _ahead(stall: Stall, case: RanAhead) -> Finding:
    last = _parts.where(case.others[0], case.last, _parts.says("last_called", what=case.last.text)) if case.last else ()
    return _parts.confirmed(
        stall.job,
        _TEXTS.facts(
            ("ahead", "unrecorded") if case.may_be_unrecorded else "ahead",
            case=case,
            last=case.last.cited() if case.last else "the start",
            reach=_TEXTS.phrase("call_at" if case.call.site else "reach", call=case.call),
            count=len(case.ranks) + len(case.others),
        ),
        AHEAD[case.may_be_unrecorded],
        at=case.operation,
        seen={
            case.ranks[0]: _parts.says("waits_in", what=case.call.text),
            case.others[0]: _parts.says("nothing_pending"),
        },
        ranks=case.ranks,
        victims=case.others,
        where=(*_parts.where(case.ranks[0], case.call), *last),
    )


CAUSE = declared(__file__, explain, decide)
