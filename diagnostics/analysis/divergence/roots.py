"""Rooted collectives in which ranks disagree on the root, which dumps do not record: gloo's tree shows who is stuck."""

from collections.abc import Mapping
from typing import Any

from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.find import Divergence, edited
from diagnostics.analysis.divergence.vote import Vote, count_votes
from diagnostics.contract.findings import LIKELY, OPEN, POSSIBLE
from diagnostics.evidence.calls import Call

_MOST_RANKS = 64  # All pairs of rank and root are tried, which is quadratic in the size.


def differing_roots(calls: Mapping[int, Call], members: tuple[int, ...], deviating: tuple[int, ...]) -> Divergence:
    """Return the divergence of ranks that name different roots; `calls` are those of the ranks that hang in one call.

    `deviating` are the ranks that named another root, if the roots or gloo's broadcast tree tell which.
    """
    culprits, first = deviating or tuple(calls), next(iter(calls.values()))
    by_root: dict[int | None, list[int]] = {}
    for rank, call in calls.items():
        by_root.setdefault(call.wire.root, []).append(rank)
    unknown = [[rank for rank in members if rank not in culprits], [*culprits]]
    sides = [*by_root.values()] if len(by_root) > 1 else unknown
    sides.sort(key=lambda side: (not set(deviating).isdisjoint(side), -len(side), side))
    vote = Vote(first.key, first.seq, tuple(map(tuple, sides)))
    majority, minority = (calls.get(side[0], first) for side in sides[:2])
    # A broadcast that completed on some ranks only may also mean that a link failed. If none completed it, the roots
    # were read from the ranks, but not how many calls they had made before.
    limit = OPEN if not deviating else POSSIBLE if len(calls) < len(members) else LIKELY
    more: dict[str, Any] = {"culprits": culprits, "tie": not deviating, "groups_known": first.seq > 0, "limit": limit}
    return edited(vote, (majority, minority), ("change", "within"), support("same line"), **more)


def other_roots(calls: Mapping[int, Call], world: int) -> tuple[int, ...]:
    """Return the ranks that named another root than the others, from the calls of the waiting ranks.

    If all ranks wait it is that of fewer, else see `deviating_rank`. Without an answer, the result is empty.
    """
    roots = {rank: call.wire.root for rank, call in calls.items() if call.wire.root is not None}
    if len(roots) < world:
        named = deviating_rank(tuple(range(world)), tuple(roots), roots)
        return () if named is None else (named,)
    named_by = {root: [rank for rank in roots if roots[rank] == root] for root in roots.values()}
    vote = count_votes(next(iter(calls.values())).key, 0, named_by)
    return vote.minority if vote.has_majority else ()


def deviating_rank(
    members: tuple[int, ...], waiting: tuple[int, ...], named: Mapping[int, int] | None = None
) -> int | None:
    """Return the rank that passed a root other than the first member, if this leaves exactly `waiting` stuck.

    The others are assumed to use the first member as root, which is by far the most common; `named` are roots that are
    known. Without a unique answer, the result is None.
    """
    size = len(members)
    if not 2 < size <= _MOST_RANKS:
        return None
    stuck = {members.index(rank) for rank in waiting if rank in members}
    known = {members.index(rank): members.index(root) for rank, root in (named or {}).items()}
    candidates = {
        members[deviating]
        for deviating in range(1, size)
        for root in range(1, size)
        if all((root if rank == deviating else 0) == at for rank, at in known.items())
        if stuck_ranks([root if rank == deviating else 0 for rank in range(size)]) == stuck
    }
    return candidates.pop() if len(candidates) == 1 else None


def stuck_ranks(roots: list[int]) -> set[int]:
    """Return the ranks that never return if rank i uses `roots[i]` as the root."""
    plans = [_steps(rank, root, len(roots)) for rank, root in enumerate(roots)]
    moved = True
    while moved:
        moved = False
        for rank, plan in enumerate(plans):
            for sends, peer in plan[:1]:
                if plans[peer][:1] == [(not sends, rank)]:
                    moved = bool(plan.pop(0) and plans[peer].pop(0))
    return {rank for rank, plan in enumerate(plans) if plan}


def _steps(rank: int, root: int, size: int) -> list[tuple[bool, int]]:
    """Return the steps of a rank in the tree as (whether it sends, peer)."""
    virtual = (rank - root) % size
    bits = (1 << level for level in range(max(1, (size - 1).bit_length())))
    peers = ((bit, virtual ^ bit) for bit in bits if virtual < 2 * bit)
    return [(not virtual & bit, (peer + root) % size) for bit, peer in peers if peer < size]
