"""Rooted collectives in which ranks disagree on the root, which dumps do not record: gloo's tree shows who is stuck."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.find import Divergence, edited
from diagnostics.analysis.vote import count_votes, settled
from diagnostics.contract.findings import LIKELY, OPEN, POSSIBLE
from diagnostics.evidence.calls import Call

_MOST_RANKS = 64  # All pairs of rank and root are tried, which is quadratic in the size.


def differing_roots(calls: Mapping[int, Call], members: tuple[int, ...]) -> Divergence:
    """Return the divergence of ranks that name different roots; `calls` are those of the ranks that hang in one call.

    If all members hang, those that named another root than most deviate; else see `deviating_rank`.
    """
    first, roots = next(iter(calls.values())), {rank: call.wire.root for rank, call in calls.items()}
    at, named = (first.key, first.seq), {rank: root for rank, root in roots.items() if root is not None}
    vote = count_votes(*at, roots)
    deviating = vote.minority if vote.has_majority and len(vote.present) == len(members) else ()
    if len(vote.present) < len(members) and (named or first.wire.op == "broadcast"):
        deviating = tuple(filter(None, [deviating_rank(members, tuple(calls), named)]))  # Never the first member.
    culprits = deviating or tuple(calls)
    if len(vote.sides) == 1:
        vote = settled(at, [rank for rank in members if rank not in culprits], culprits)
    sides = sorted(vote.sides, key=lambda side: (not set(deviating).isdisjoint(side), -len(side), side))
    majority, minority = (calls.get(side[0], first) for side in sides[:2])
    # A broadcast that completed on some ranks only may also mean that a link failed. If none completed it, the roots
    # were read from the ranks, but not how many calls they had made before.
    limit = OPEN if not deviating else POSSIBLE if len(calls) < len(members) else LIKELY
    more: dict[str, Any] = {"culprits": culprits, "tie": not deviating, "groups_known": first.seq > 0, "limit": limit}
    vote, term = replace(vote, sides=tuple(sides)), support("same line")
    return edited(vote, (majority, minority), ("change", "within"), term, **more)


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
    root_at = {members.index(rank): members.index(root) for rank, root in (named or {}).items()}
    candidates = {
        members[deviating]
        for deviating in range(1, size)
        for root in range(1, size)
        if all((root if rank == deviating else 0) == at for rank, at in root_at.items())
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
