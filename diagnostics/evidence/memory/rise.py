"""What memory grows by between equal points of the steps of a recording that has no stacks and no marked steps.

By categories: each step fills and empties its gradients or its activations once. By sizes alone: a training allocates
the same sizes in the same order in every step; but so do the layers of one forward pass, which keep what they save.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, product

from msgspec import Struct

LEAST = 5  # Points; with fewer, what warms up looks like growth.
_FULL, _EMPTY = 0.75, 0.25  # Shares of the most that a category holds; between them it is neither.
_TRIED = 32  # Sizes tried, the rarest first. Each is searched in the whole recording, so this bounds the time.
_TIMES = 8  # Most allocations of that size in a step: where layers are equal, hardly a size occurs once.
_ALIKE = 0.9  # Share of the allocations that equal those of the previous period.
_TAIL = 1.5  # Periods after the last point: the snapshot or the window ends within a step, or after it.
_WARM_UP = 0.5  # Share of the recording before the first point.


class Rise(Struct, frozen=True):
    """Growth of memory between the equal points of a recording."""

    grown: list[int]
    """Bytes from each point to the next."""
    are_steps: bool = False
    """Whether a step lies between two points; otherwise it may be a layer."""


def by_levels(rows: Sequence[tuple[int, int]]) -> Rise | None:
    """Return the growth over the steps, by (bytes of a category that each step fills and empties, all bytes)."""
    most = max((size for size, _ in rows), default=0)
    points, is_full = list[int](), False
    for size, total in rows:
        if size >= _FULL * most and not is_full:
            points.append(total)
        is_full = size >= _FULL * most or (is_full and size > _EMPTY * most)
    # The first step also allocates what is permanent.
    return Rise([b - a for a, b in pairwise(points[1:])], are_steps=True) if len(points) > LEAST else None


def by_sizes(changes: Sequence[int]) -> Rise | None:
    """Return the growth by the bytes allocated, or released if negative; None if they consist of no equal stretches."""
    levels, sizes, level = list[int](), list[int](), 0
    places = defaultdict[int, list[int]](list)
    for change in changes:
        if change > 0:
            places[change].append(len(sizes))
            sizes.append(change)
            levels.append(level)
        level += change
    rare = sorted((own for own in places.values() if len(own) >= LEAST), key=len)
    for own, times in product(rare[:_TRIED], range(1, _TIMES + 1)):
        period = own[-1] - own[max(-len(own), -1 - times)]
        points = [own[-1]]
        while points[-1] - period >= 0 and sizes[points[-1] - period] == sizes[own[-1]]:
            points.append(points[-1] - period)
        points.reverse()
        first, last = points[0], points[-1]
        ends = len(sizes) - last <= _TAIL * period and first <= _WARM_UP * len(sizes)
        if len(points) < LEAST or len(own) > _TAIL * times * len(points) or not ends:
            continue
        same = sum(sizes[at] == sizes[at - period] for at in range(first + period, len(sizes)))
        if same >= _ALIKE * (len(sizes) - first - period):
            return Rise([levels[after] - levels[before] for before, after in pairwise(points)])
    return None
