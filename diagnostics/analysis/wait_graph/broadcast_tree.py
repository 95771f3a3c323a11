"""Gloo's broadcast tree, a binomial tree over ranks relative to the root, as gloo's broadcast.cc walks it."""

_MOST_RANKS = 64  # Every pair of rank and root is tried, which takes the square of the size.


def deviating_rank(members: tuple[int, ...], waiting: tuple[int, ...]) -> int | None:
    """Return the rank that passed a root other than the first member, if this leaves exactly `waiting` stuck.

    The others are assumed to use the first member as root, which is by far the most common. Without a unique answer,
    the result is None.
    """
    size = len(members)
    if not 2 < size <= _MOST_RANKS:
        return None
    stuck = {members.index(rank) for rank in waiting if rank in members}
    candidates = {
        members[deviating]
        for deviating in range(1, size)
        for root in range(1, size)
        if stuck_ranks([root if rank == deviating else 0 for rank in range(size)]) == stuck
    }
    return candidates.pop() if len(candidates) == 1 else None


def stuck_ranks(roots: list[int]) -> set[int]:
    """Which ranks never return when rank i takes `roots[i]` for the root."""
    size = len(roots)
    plans = [_steps(rank, root, size) for rank, root in enumerate(roots)]
    at = [0] * size
    moved = True
    while moved:
        moved = False
        for rank in range(size):
            if at[rank] < len(plans[rank]):
                sends, peer = plans[rank][at[rank]]
                if at[peer] < len(plans[peer]) and plans[peer][at[peer]] == (not sends, rank):
                    at[rank] += 1
                    at[peer] += 1
                    moved = True
    return {rank for rank in range(size) if at[rank] < len(plans[rank])}


def _steps(rank: int, root: int, size: int) -> list[tuple[bool, int]]:
    """Return the steps of a rank in the tree as (whether it sends, peer)."""
    virtual = (rank + size - root) % size
    depth = max(1, (size - 1).bit_length())
    mask = (1 << depth) - 1
    steps = []
    for bit in range(depth):
        mask ^= 1 << bit
        peer = virtual ^ (1 << bit)
        if virtual & mask or peer >= size:
            continue
        steps.append((not virtual & (1 << bit), (peer + root) % size))
    return steps
