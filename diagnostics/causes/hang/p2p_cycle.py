"""A send or receive waits for its other half, which is never posted: in a cycle, or on one side only."""

from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.from_observations import UnrecordedTransfer
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import UNRECORDED, left_open, unconfirmed
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, worded
from diagnostics.contract.formatting import file_name, ranks_spoken, sentence, verb
from diagnostics.evidence.calls import Call

ID = "hang.p2p_cycle"
_CYCLE_CONFIDENCE, _ONE_SIDED_CONFIDENCE = 0.95, 0.8
"""A cycle of sends and receives proves itself; where a peer is in another call, that call may be the wrong one."""
_ALL_CONFIDENCE, _BESIDE_CONFIDENCE, _SOME_CONFIDENCE = 0.9, 0.85, 0.45
"""By stacks: all ranks wait in one half; some do, the others in a collective; or the number of ranks is not known."""
_SHOWN = 8
"""Ranks of a cycle that a sentence names."""
_HALVES = "a blocking send or receive returns only when the peer has posted the other half"


def _no_other_half_text(finding: Finding, case: PointToPoint) -> Text:
    links = [
        f"rank {rank} {'receives from' if call.p2p == 'recv' else 'sends to'} rank {call.peer}{_at(call)}"
        for rank, call in case.calls[:_SHOWN]
    ]
    links += [f"and {len(case.calls) - _SHOWN} more"] if len(case.calls) > _SHOWN else []
    chain = "; ".join(links)
    sites = [call.place for _, call in case.calls if call.site]
    if case.tags_differ:
        summary = f"A send and a receive face each other with different tags: {chain}."
        both = " and ".join(dict.fromkeys(sites)) or "both calls"
        change = f"give the two halves of a message the same tag: {both}"
        remedy = Remedy("code", change, "a receive takes only a message with its own tag")
    elif not case.elsewhere:
        summary = f"Sends and receives wait for each other in a cycle: {chain}."
        at = _at(case.calls[0][1]).strip(" ()") or "these calls"
        remedy = _send_first(at)
    else:
        rest = tuple(rank for rank, _ in case.elsewhere)
        summary = (
            f"A one-sided call: {chain}, which never posts the other half. {sentence(ranks_spoken(rest))} "
            f"{verb(rest, 'waits', 'wait')} in {case.elsewhere[0][1].cited()} instead."
        )
        rank, call = case.calls[0]
        half = f"send to rank {rank}" if call.p2p == "recv" else f"receive from rank {rank}"
        before = "".join(f" before {peer_call.cited()}" for peer_call in case.peers.values())
        place = call.place if call.site else "this call"
        change = f"let rank {call.peer} {half}{before}, or take out the {call.p2p} at {place}"
        remedy = Remedy("code", change, _HALVES)
    return Text(summary=summary, measured=f"cycle of {len(case.cycle.ranks)} ranks", remedies=(remedy,))


def _nobody_posts_text(finding: Finding, case: UnrecordedTransfer) -> Text:
    ranks, waiting = tuple(case.ranks), case.waiting
    first = next((rank.site for rank in case.ranks.values() if rank.site is not None), None)
    at = f" ({file_name(first.file)}:{first.line})" if first else ""
    other = "sends" if case.direction == "recv" else "receives"
    if waiting:
        summary = (
            f"{sentence(ranks_spoken(ranks))} {verb(ranks, 'waits', 'wait')} in {case.direction}{at} and nobody "
            f"{other}: {ranks_spoken(waiting)} {verb(waiting, 'is', 'are')} in a collective, waiting for "
            f"{ranks_spoken(ranks)}."
        )
    elif case.world_known:
        summary = f"All {len(ranks)} ranks wait in {case.direction}{at} and none {other}."
    else:
        summary = (
            f"All {len(ranks)} ranks that left a log wait in {case.direction}{at} and none of them {other}; "
            "nothing says whether the job has more ranks."
        )
    return Text(
        summary=summary,
        measured=f"{len(ranks)} of {len(ranks) + len(waiting)} ranks in {case.direction}",
        missing="" if case.world_known else "the number of ranks: a dump, or the launcher's log of every node",
        remedies=(_send_first(f"{first.file}:{first.line}" if first else "these calls"),),
    )


def _send_first(at: str) -> Remedy:
    change = f"let one side send before it receives, or post both with batch_isend_irecv, at {at}"
    return Remedy("code", change, _HALVES)


def _at(call: Call) -> str:
    return f" ({file_name(call.site.file)}:{call.site.line})" if call.site else ""


def decide(stall: Stall) -> list[Finding]:
    """Decide from the cycles of the wait-for graph with sends and receives, else from stacks."""
    findings = [_finding(stall, wait) for wait in stall.circular if isinstance(wait, PointToPoint)]
    findings += [_unrecorded(stall, stall.transfer)] if stall.transfer is not None else []
    return findings or [unconfirmed(stall, ID, UNRECORDED, otherwise=_otherwise)]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    """Leave it open where gloo may have left out the send or receive that a rank waits in."""
    unseen = [rank for rank in sorted(stall.job.survey.ranks) if stall.job.may_be_unrecorded(rank)]
    if not waits and unseen:
        text = "Every recorded call completed, but gloo records no send or recv: {who} may wait in one of these."
        return left_open(ID, text, UNRECORDED, about=unseen)
    if not waits or not any(stall.job.may_be_unrecorded(rank) for rank in stall.unclear):
        return None
    text = (
        "{who:^} may wait in a send or recv, which gloo's recorder leaves out: nothing is pending there and no stack "
        "was left."
    )
    return left_open(ID, text, UNRECORDED, about=stall.unclear)


def _finding(stall: Stall, case: PointToPoint) -> Finding:
    job, cycle = stall.job, case.cycle
    waiters = tuple(rank for rank, _ in case.calls)
    elsewhere = case.elsewhere[:1]
    return _parts.confirmed(
        job,
        ID,
        worded(_no_other_half_text, case=case),
        _ONE_SIDED_CONFIDENCE if elsewhere else _CYCLE_CONFIDENCE,
        seen={rank: f"waits in {call.text}" for rank, call in case.calls},
        ranks=waiters,
        victims=tuple(sorted((job.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(waiters))),
        group=_parts.group(job.survey, case.calls[0][1].key),
        where=tuple(
            place
            for rank, call, does in (
                *((rank, call, f"waits in {call.text}") for rank, call in case.calls[:4]),
                *((rank, call, f"waits in {call.text} instead of the other half") for rank, call in elsewhere),
            )
            for place in _parts.where(rank, call, does)
        ),
    )


def _unrecorded(stall: Stall, case: UnrecordedTransfer) -> Finding:
    confidence = _BESIDE_CONFIDENCE if case.waiting else _ALL_CONFIDENCE
    waits, ranks = f"waits in {case.direction}", list(case.ranks.items())
    return _parts.confirmed(
        stall.job,
        ID,
        worded(_nobody_posts_text, case=case),
        confidence if case.world_known else _SOME_CONFIDENCE,
        evidence=[EvidenceItem(seen.kind, seen.file, f"rank {rank}: {waits}") for rank, seen in ranks[:6]],
        ranks=tuple(case.ranks),
        victims=case.waiting,
        where=tuple(place for rank, seen in ranks[:4] for place in _parts.where(rank, seen.site, waits)),
    )


CAUSE = declared(__file__, explain, decide)
