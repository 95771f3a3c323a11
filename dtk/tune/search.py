"""The largest value that fits, found by doubling and then bisecting over the valid ones. Pure; asks, runs nothing."""

from bisect import bisect_right
from collections.abc import Callable, Sequence


def largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest size that fits, if all smaller ones do; None when not even the smallest does.

    Args:
        sizes: ascending, at least one.
        fits: asked at most once for each size, and never for one above the first that did not fit.
    """
    below, above = -1, len(sizes)
    at = 0
    while at < len(sizes):
        if not fits(sizes[at]):
            above = at
            break
        below = at
        # The largest up to twice this one, or the next where divisors lie further apart.
        at = max(bisect_right(sizes, 2 * sizes[at]) - 1, at + 1)
    while above - below > 1 and below >= 0:
        middle = (below + above) // 2
        if fits(sizes[middle]):
            below = middle
        else:
            above = middle
    return None if below < 0 else sizes[below]
