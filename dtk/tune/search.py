"""The largest value that fits, found by doubling and then bisecting over the valid ones. Pure; asks, runs nothing."""

from collections.abc import Callable, Sequence
from itertools import pairwise


def largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest size that fits, if all smaller ones do; None when not even the smallest does.

    Args:
        sizes: ascending, at least one.
        fits: asked at most once for each size, and never for one above the first that did not fit.
    """
    below, above = -1, len(sizes)
    for at in _doubling(sizes):
        if not fits(sizes[at]):
            above = at
            break
        below = at
    while above - below > 1 and below >= 0:
        middle = (below + above) // 2
        if fits(sizes[middle]):
            below = middle
        else:
            above = middle
    return None if below < 0 else sizes[below]


def _doubling(sizes: Sequence[int]) -> list[int]:
    """Positions: each the largest up to twice the one before, or the next where divisors lie further apart."""
    chosen = [0]
    while chosen[-1] < len(sizes) - 1:
        limit = 2 * sizes[chosen[-1]]
        reached = [n for n in range(chosen[-1] + 1, len(sizes)) if sizes[n] <= limit]
        chosen.append(reached[-1] if reached else chosen[-1] + 1)
    assert all(a < b for a, b in pairwise(chosen))
    return chosen
