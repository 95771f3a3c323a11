"""A rank is there, waits in nothing, and never came to the collective that the others wait in."""

from diagnostics.analysis.job_state import STALL_S
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.late import HostStall
from diagnostics.analysis.stall.stack_evidence import HostOutside
from diagnostics.analysis.stall.watchdog import WatchdogGap
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.hang import _parts, _stacks, _watchdog
from diagnostics.causes.hang._host import doing, fix
from diagnostics.causes.hang._proviso import assuming
from diagnostics.causes.hang._unconfirmed import left_open, unconfirmed
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb

ID = "hang.host_stall"
_TEXTS = texts_beside(__file__)
_SEEN_CONFIDENCE = 0.95
"""A stack shows what the host does."""
_UNSEEN_CONFIDENCE = 0.6
"""Without a stack the rank may as well be gone, or in a call that gloo does not record."""
_ONE_STACK_CONFIDENCE = 0.75
"""One stack, in a job of which something else shows that it hangs."""
_MISSING = "stacks of the ranks at the stall: dtk watch -- torchrun ..., or py-spy dump"
_OTHERS_WAIT = "everybody else waits for this rank's next collective"


def _late_host_text(finding: Finding, case: HostStall) -> Text:
    ranks, call, at = case.ranks, case.call, case.standing
    who = sentence(ranks_spoken(ranks))
    missed = f"{call.text} (#{call.seq} of group {call.key.label})"
    if call.p2p:
        missed = f"the other half of {call.text}"
    summary = (
        f"{who} never reached {missed}, which {ranks_spoken(case.waiting)} {verb(case.waiting, 'waits', 'wait')} in"
    )
    if at.frame or case.has_stack:
        summary += f": its host is {doing(at, explained=True)}."
    else:
        summary += (
            f"; nothing is pending on {verb(ranks, 'it', 'them')} and no traceback or stack was left. "
            f"{verb(ranks, 'It is', 'They are')} late, stuck or gone: the dumps cannot tell."
        )
        if case.failed:
            failed = sentence(ranks_spoken(case.failed))
            own = f"for a reason of {verb(case.failed, 'its', 'their')} own"
            summary += f" {failed} ended with exit code 1, {own} or after a timeout."
        if case.may_be_unrecorded:
            summary += " It may also be in a send or recv, which gloo's recorder does not show."
    group = case.operation.key.label
    since = f"before position {case.operation.seq} of group {group}" if case.operation.seq > 1 else "at start-up"
    if case.last is not None:
        since = f"after {case.last.cited()}"
    elif case.issued > 0:
        since = f"after position {case.issued} of group {group}"
    look = f"look at what {ranks_spoken(ranks)} did {since}"
    waiting = counted(len(case.waiting), "rank")
    return Text(
        summary=summary,
        measured=(
            f"{waiting} {verb(case.waiting, 'waits', 'wait')} for {ranks_spoken(ranks)}, which "
            f"{verb(ranks, 'has', 'have')} nothing pending"
        ),
        remedies=(Remedy("code", fix(at, look), _OTHERS_WAIT),),
    )


def _outside_text(finding: Finding, case: HostOutside) -> Text:
    ranks, inside = case.ranks, case.inside
    first, place = case.standings[ranks[0]], next(iter(inside.values()))
    waited = f" for at least {case.blocked_s:.0f} s" if case.blocked_s >= STALL_S else ""
    late = " It is late, or in a loop that does not end: a second look tells." if case.working else ""
    return Text(
        summary=(
            f"{sentence(ranks_spoken(ranks))} {verb(ranks, 'is', 'are')} not in {_stacks.described(place)}, which "
            f"{ranks_spoken(inside)} {verb(inside, 'waits', 'wait')} in{waited}: its host is "
            f"{doing(first, explained=True)}.{late}"
        ),
        measured=f"{len(inside)} ranks in {place.op}, {len(ranks)} outside",
        remedies=(Remedy("code", fix(first), _OTHERS_WAIT),),
    )


def decide(stall: Stall) -> list[Finding]:
    """Decide from the roots of the wait-for graph that have nothing pending, their stacks, and watchdogs' lines."""
    findings, case = list[Finding](), stall.watchdog
    if isinstance(case, WatchdogGap) and not case.few_wait:
        told = _watchdog.told(case, who=sentence(ranks_spoken(case.behind)), last=case.call.seq - 1)
        told |= {"its": verb(case.behind, "its", "their"), "it_is": sentence(verb(case.behind, "it is", "they are"))}
        findings.append(_watchdog.confirmed(case, ID, worded(_TEXTS, **told)))
    if isinstance(stall.stacks, HostOutside):
        findings.append(_outside(stall.stacks))
    if stall.host is not None:
        findings.append(assuming(stall.job, _finding(stall, stall.host)))
    return findings or [unconfirmed(stall, ID, _MISSING, silent=True, otherwise=_otherwise)]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    if waits or not (behind := stall.job.behind()):
        return None
    text = "{who} made fewer calls than {its} peers, and nothing shows whether the job had ended."
    return left_open(ID, text, _MISSING, about=behind)


def _finding(stall: Stall, case: HostStall) -> Finding:
    job, first, at = stall.job, case.ranks[0], case.standing
    waits = f"waits in {case.call.text}"
    if at.frame is not None:
        place = _parts.where(first, at.frame, f"stands there, {at.words}")
    else:
        place = _parts.where(first, case.last, f"made {case.last.text} last" if case.last else None)
    stack = EvidenceItem("stacks", case.stack_file, f"rank {first}: {doing(at)}")
    return Finding(
        cause=ID,
        status="confirmed",
        facts=worded(_late_host_text, case=case),
        confidence=_SEEN_CONFIDENCE if case.has_stack else _UNSEEN_CONFIDENCE,
        ranks=case.ranks,
        victims=tuple(sorted(job.waits.reaching(case.ranks) - set(case.ranks))),
        group=_parts.group(job.survey, case.operation.key),
        position=case.operation.seq if case.operation.peer < 0 else None,
        step=job.step_of(first),
        where=(*place, *_parts.where(case.waiting[0], case.call, waits)),
        cost=job.cost(),
        evidence=(
            *((stack,) if case.stack_file else ()),
            *_parts.dumps(job.survey, {**dict.fromkeys(case.ranks, "nothing pending"), case.waiting[0]: waits}),
        ),
    )


def _outside(case: HostOutside) -> Finding:
    waiting, place = next(iter(case.inside.items()))
    unsure = case.working or not place.site
    seen = _SEEN_CONFIDENCE if case.blocked_s >= STALL_S else _ONE_STACK_CONFIDENCE
    stands = [
        _parts.where(rank, at.frame, f"stands there, {at.words}") for rank, at in list(case.standings.items())[:4]
    ]
    stacks = [
        EvidenceItem("stacks", case.files[rank], f"rank {rank}: {doing(at)}") for rank, at in case.standings.items()
    ]
    waits = EvidenceItem(place.kind, place.file, f"rank {waiting}: stands in {_stacks.described(place)}", place.line)
    return Finding(
        cause=ID,
        status="confirmed",
        facts=worded(_outside_text, case=case),
        confidence=_UNSEEN_CONFIDENCE if unsure else seen,
        ranks=case.ranks,
        victims=tuple(case.inside),
        where=(
            *(each for places in stands for each in places),
            *_parts.where(waiting, place.site, f"waits in {place.op}"),
        ),
        evidence=(*stacks, waits)[:6],
    )


CAUSE = declared(__file__, explain, decide)
