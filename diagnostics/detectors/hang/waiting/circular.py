"""Circular waits: groups used in different orders, sends and receives that wait for each other, one-sided ones."""

from dataclasses import replace

from diagnostics.analysis.divergence import program_order
from diagnostics.analysis.wait_graph.graph import Cycle, Operation, same_tag
from diagnostics.contract.findings import Finding, Remedy, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.unrecorded import unseen
from diagnostics.detectors.hang.waiting import walked
from diagnostics.detectors.hang.waiting.walked import Walked
from diagnostics.evidence.calls import Call


def find(context: Context) -> list[Finding]:
    """Confirmed circles whose ranks no mismatch explains."""
    found = []
    for cycle in context.waits.cycles():
        if set(cycle.ranks) & context.settled:
            continue
        p2p = [operation for operation in cycle.operations if operation.peer >= 0]
        if p2p:
            found.append(_point_to_point(context, cycle, p2p))
        else:
            past = walked.find(context, cycle)
            one = _walked_past(context, past) if past else _skipped(context, cycle) or _order(context, cycle)
            found.append(one)
        context.settled |= set(cycle.ranks) | context.waits.reaching(cycle.ranks)
    if not found:
        found += unseen.find(context)
    return found


def _waits_in(context: Context, rank: int, cycle: Cycle) -> tuple[Operation, Call] | None:
    for operation in context.waits.of_rank.get(rank, []):
        if operation in cycle.operations:
            return operation, context.waits.calls[rank, operation]
    return None


def _sides(context: Context, cycle: Cycle) -> dict[Operation, list[int]]:
    """Operation -> ranks of the circle that wait in it first."""
    sides: dict[Operation, list[int]] = {}
    for rank in cycle.ranks:
        waits = _waits_in(context, rank, cycle)
        if waits is not None:
            sides.setdefault(waits[0], []).append(rank)
    return sides


def _skipped(context: Context, cycle: Cycle) -> Finding | None:
    """Two groups, but no order: a rank walked past a collective of the one and waits in the other with outsiders.

    What its neighbours in the other group call from the same line is the common path; who stands at a later
    line of that path than the waiting peer has left the peer's call out.
    """
    if len(cycle.operations) != 2:
        return None
    for mine, other in (cycle.operations, cycle.operations[::-1]):
        for rank in cycle.ranks:
            here = context.waits.calls.get((rank, mine))
            peers = [peer for peer in context.waits.waiting[other] if peer in cycle.ranks and peer != rank]
            if here is None or not here.site or not peers or rank not in context.waits.absent[other]:
                continue
            there = context.waits.calls[peers[0], other]
            company = [
                call
                for (who, operation), call in context.waits.calls.items()
                if operation == mine and who != rank and call.site == here.site
            ]
            if company and program_order(here.stack, there.stack) > 0:
                return _conditional(context, (rank,), here, tuple(peers), there)
    return None


def _conditional(context: Context, ranks: tuple[int, ...], here: Call, peers: tuple[int, ...], there: Call) -> Finding:
    survey = context.survey
    place = f"{there.site.file}:{there.site.line}" if there.site else f"position {there.seq}"
    return Finding(
        cause="hang.conditional_collective",
        status="confirmed",
        summary=(
            f"{say.sentence(say.ranks(ranks))} left out {say.call(there)} in group {say.label(there.key)}, which "
            f"{say.ranks(peers)} {say.verb(peers, 'waits', 'wait')} in; {say.verb(ranks, 'it is', 'they are')} "
            f"already in {say.call(here)}."
        ),
        confidence=0.85,
        ranks=ranks,
        victims=tuple(sorted((set(context.pending_ranks()) | context.waits.reaching(ranks)) - set(ranks))),
        group=say.group(survey, there.key),
        position=there.seq,
        where=(
            *say.where(ranks[0], here, f"is already in {here.text}"),
            *say.where(peers[0], there, f"waits in {there.text}"),
        ),
        cost=context.cost(),
        evidence=say.flight(survey, {ranks[0]: f"waits in {here.text}", peers[0]: f"waits in {there.text}"}),
        remedies=say.remedies(
            context.evidence,
            f"call {there.text} at {place} on all ranks of its group, or on none",
            "a collective inside a condition that differs by rank leaves the others waiting",
        ),
        measured=(
            f"{len(ranks)} {say.verb(ranks, 'rank', 'ranks')} walked past position {there.seq} of group "
            f"{say.label(there.key)}"
        ),
    )


def _walked_past(context: Context, past: Walked) -> Finding:
    """Whoever is fewer differs: those who left the call out, or those who make it; as many of both are a tie.

    Ranks that go through the same lines in groups of their own count as well.
    """
    more = len(past.peers) + len(past.made) - len(past.ranks) - len(past.left_out)
    if more > 0:
        return _conditional(context, past.ranks, past.here, past.peers, past.there)
    found = _conditional(context, past.ranks, past.here, past.peers, past.there)
    ranks = tuple(sorted((*past.ranks, *past.peers))) if more == 0 else past.peers
    tie = " It is a tie: either the call or its absence may be the wrong one." if more == 0 else ""
    makes = say.verb(past.peers, "makes", "make")
    alone = f" Only {say.ranks(past.peers)} {makes} it in this round." if more < 0 else ""
    order = sorted(found.where, key=lambda place: place.rank not in ranks)
    return replace(
        found,
        summary=found.summary + tie + alone,
        confidence=0.8,
        ranks=ranks,
        victims=tuple(sorted({*found.victims, *past.ranks} - set(ranks))),
        where=tuple(order),
    )


def _minority(cycle: Cycle, sides: list[list[int]]) -> tuple[int, ...]:
    """The ranks that are not on the largest side; all where no side is larger than the others."""
    sizes = sorted((len(side) for side in sides), reverse=True)
    largest = max(sides, key=len) if len(sizes) > 1 and sizes[0] > sizes[1] else []
    return tuple(rank for rank in cycle.ranks if rank not in largest)


def _order(context: Context, cycle: Cycle) -> Finding:
    sides = _sides(context, cycle)
    blamed = _minority(cycle, list(sides.values()))
    links, where, details = [], [], {}
    for operation, side in sorted(sides.items(), key=lambda item: item[1]):
        call = context.waits.calls[side[0], operation]
        for_whom = tuple(rank for rank in context.waits.absent[operation] if rank in cycle.ranks)
        links.append(
            f"{say.ranks(side)} {say.verb(side, 'waits', 'wait')} for {say.ranks(for_whom)} in "
            f"{say.call(call)} of group {say.label(operation.key)}"
        )
        does = f"waits for {say.ranks(for_whom)} in {call.text} of group {say.label(operation.key)}"
        where += say.where(next((rank for rank in side if rank in blamed), side[0]), call, does)
        details[side[0]] = does
    order = {rank: place for place, rank in enumerate(blamed)}
    where.sort(key=lambda place: order.get(place.rank or 0, len(order)))
    judged = "Neither order is the wrong one by itself."
    if len(blamed) < len(cycle.ranks):
        judged = f"{say.sentence(say.ranks(blamed))} used another order than the rest."
    first = sorted(cycle.operations)[0]
    places = " and ".join(dict.fromkeys(f"{place.file}:{place.line}" for place in where)) or "both calls"
    return Finding(
        cause="hang.group_order",
        status="confirmed",
        summary=f"A circle of waits across groups: {'; '.join(links)}. {judged}",
        confidence=0.9,
        ranks=blamed,
        victims=tuple(sorted((context.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(blamed))),
        group=say.group(context.survey, first.key),
        position=first.seq,
        where=tuple(where),
        cost=context.cost(),
        evidence=say.flight(context.survey, details),
        remedies=say.remedies(
            context.evidence,
            f"use the two groups in the same order on every rank: {places}",
            "each side waits for the other before it reaches the collective that the other waits in",
        ),
        measured=f"circle of {len(cycle.ranks)} ranks over {len(cycle.operations)} operations",
    )


def _point_to_point(context: Context, cycle: Cycle, p2p: list[Operation]) -> Finding:
    """All waits are sends and receives: everybody is part of it. Mixed: who waits for a message nobody sends."""
    waiters = tuple(sorted(rank for rank in cycle.ranks if any(op in p2p for op in context.waits.of_rank[rank])))
    calls = [
        (rank, next(context.waits.calls[rank, op] for op in context.waits.of_rank[rank] if op in p2p))
        for rank in waiters
    ]
    links = [
        f"rank {rank} {'receives from' if call.p2p == 'recv' else 'sends to'} rank {call.peer}{_at(call)}"
        for rank, call in calls[:8]
    ]
    links += [f"and {len(calls) - 8} more"] if len(calls) > 8 else []
    whole = len(waiters) == len(cycle.ranks)
    tags = whole and _tags_differ(calls)
    rest = [rank for rank in cycle.ranks if rank not in waiters]
    if tags:
        summary = f"A send and a receive face each other with different tags: {'; '.join(links)}."
    elif whole:
        summary = f"Sends and receives wait for each other in a circle: {'; '.join(links)}."
    else:
        summary = (
            f"A one-sided call: {'; '.join(links)}, which never posts the other half. {say.sentence(say.ranks(rest))} "
            f"{say.verb(rest, 'waits', 'wait')} in {_elsewhere(context, rest[0])} instead."
        )
    return Finding(
        cause="hang.p2p_cycle",
        status="confirmed",
        summary=summary,
        confidence=0.95 if whole else 0.8,
        ranks=waiters,
        victims=tuple(sorted((context.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(waiters))),
        group=say.group(context.survey, calls[0][1].key),
        where=(
            *(place for rank, call in calls[:4] for place in say.where(rank, call, f"waits in {call.text}")),
            *(place for rank in rest[:1] for place in _peers_place(context, rank)),
        ),
        cost=context.cost(),
        evidence=say.flight(context.survey, {rank: f"waits in {call.text}" for rank, call in calls}),
        remedies=_same_tag(context, [call for _, call in calls])
        if tags
        else unseen.remedies(context, _at(calls[0][1]).strip(" ()"))
        if whole
        else _other_half(context, *calls[0]),
        measured=f"circle of {len(cycle.ranks)} ranks",
    )


def _tags_differ(calls: list[tuple[int, Call]]) -> bool:
    """Whether two ranks wait for each other in the two halves of one message, and only their tags keep them apart."""
    if len(calls) != 2:
        return False
    (one, mine), (other, theirs) = calls
    facing = (mine.peer, theirs.peer) == (other, one) and {mine.p2p, theirs.p2p} == {"send", "recv"}
    return facing and mine.key == theirs.key and not same_tag(mine, theirs)


def _same_tag(context: Context, calls: list[Call]) -> tuple[Remedy, ...]:
    sites = dict.fromkeys(f"{one.site.file}:{one.site.line}" for one in calls if one.site)
    places = " and ".join(sites) or "both calls"
    return say.remedies(
        context.evidence,
        f"give the two halves of a message the same tag: {places}",
        "a receive takes only a message with its own tag",
    )


def _waiting_call(context: Context, rank: int) -> Call:
    return context.waits.calls[rank, context.waits.of_rank[rank][0]]


def _elsewhere(context: Context, rank: int) -> str:
    return say.call(_waiting_call(context, rank))


def _peers_place(context: Context, rank: int) -> list[Where]:
    call = _waiting_call(context, rank)
    return say.where(rank, call, f"waits in {call.text} instead of the other half")


def _other_half(context: Context, rank: int, call: Call) -> tuple[Remedy, ...]:
    """Who has to post what, for a send or receive that stands alone."""
    half = f"send to rank {rank}" if call.p2p == "recv" else f"receive from rank {rank}"
    place = f"{call.site.file}:{call.site.line}" if call.site else "this call"
    peers = [one for one in (call.peer,) if one is not None and context.waits.of_rank.get(one)]
    before = "".join(f" before {_elsewhere(context, one)}" for one in peers)
    return say.remedies(
        context.evidence,
        f"let rank {call.peer} {half}{before}, or take out the {call.p2p} at {place}",
        "a blocking send or receive returns only when the peer has posted the other half",
    )


def _at(call: Call) -> str:
    return f" ({say.short(call.site.file)}:{call.site.line})" if call.site else ""
