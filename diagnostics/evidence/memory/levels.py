"""Bytes by category over time: the categories, a series of levels of bounded length, and how much memory grows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from operator import itemgetter

from msgspec import Struct, field

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer states"
ACTIVATIONS, BUFFERS, TEMPORARIES = "activations", "communication buffers", "temporaries"
KEPT, SAVED, UNKNOWN = "kept from earlier steps", "checkpoint copies", "not attributed"
RESERVED = "reserved, in no tensor"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, TEMPORARIES, KEPT, SAVED, UNKNOWN, RESERVED)
"""Categories from the bottom of the stacked chart to its top; only the last one is not in tensors."""
AT = {name: n for n, name in enumerate(KINDS)}
MAX_ROWS = 400
_LEAST_S = 1e-9
_LAST = len(KINDS) - 1
Row = tuple[float, tuple[int, ...]]
_Moment = tuple[int, float, list[int]]
"""(bytes in tensors, time, levels)"""
LEAST = 5  # Points; with fewer, what warms up looks like growth.
_FULL, _EMPTY = 0.75, 0.25  # Shares of the most that a category holds; between them it is neither.
_TRIED = 32  # Sizes tried, the rarest first. Each is searched in the whole recording, so this bounds the time.
_TIMES = 8  # Most allocations of that size in a step: where layers are equal, hardly a size occurs once.
_ALIKE = 0.9  # Share of the allocations that equal those of the previous period.
_TAIL = 1.5  # Periods after the last point: the snapshot or the window ends within a step, or after it.
_WARM_UP = 0.5  # Share of the recording before the first point.


class Stack(Struct):
    """Levels of all `KINDS` over time, in about `MAX_ROWS` rows.

    Time is divided into equal intervals, of which the lowest and the highest moment are kept, so that peaks remain
    exact; a period without changes keeps both of its ends.
    """

    start: float
    end: float
    levels: list[int]
    """Current levels in bytes, in the order of `KINDS`; initially those at `start`. Here the last one is all reserved
    bytes (0 on CPU), while rows have the reserved bytes that are not in tensors."""
    pinned: float | None = None
    """A time to be kept as the highest of its interval: that of the peak, if it is known beforehand."""
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    """Bytes in tensors at the current moment."""
    _time: float = 0.0
    _stretch: int = 0
    _scale: float = 0.0
    _low: _Moment | None = None
    _high: _Moment | None = None
    _is_pinned: bool = False

    def __post_init__(self) -> None:
        self._scale = (MAX_ROWS // 2 - 2) / max(self.end - self.start, _LEAST_S)
        self._time, self.total = self.start, sum(self.levels[:-1])
        self.rows.append(_row((self.total, self.start, self.levels)))

    def move(self, time: float, changes: Iterable[tuple[int, int]]) -> None:
        """Apply all changes of one moment, pairs of (index in `KINDS`, bytes); moments must ascend."""
        stretch = int((min(max(time, self.start), self.end) - self.start) * self._scale)
        if stretch != self._stretch:
            self._close(time if stretch > self._stretch + 1 else None)
            self._stretch = stretch
        self._time, levels = time, self.levels
        for at, change in changes:
            levels[at] += change
            if at != _LAST:
                self.total += change
        pinned = time == self.pinned
        if pinned or self._high is None or (self.total > self._high[0] and not self._is_pinned):
            self._high, self._is_pinned = (self.total, time, levels[:]), pinned
        if self._low is None or self.total < self._low[0]:
            self._low = (self.total, time, levels[:])

    def finish(self) -> list[Row]:
        """Return all rows in ascending order of time, including one for the end."""
        self._close(self.end)
        return self.rows

    def _close(self, until: float | None) -> None:
        """End an interval; with `until`, add a row with the current levels at that time."""
        rows = [_row(moment) for moment in (self._low, self._high) if moment is not None]
        if until is not None:
            rows += [_row((self.total, time, self.levels)) for time in (self._time, until)]
        for row in sorted(rows, key=itemgetter(0)):
            if self.rows[-1] != row:
                self.rows.append(row)
        self._low = self._high = None
        self._is_pinned = False


def _row(moment: _Moment) -> Row:
    tensors, time, levels = moment
    return time, (*(max(0, level) for level in levels[:-1]), max(0, levels[-1] - tensors))


def highest(rows: Sequence[Row]) -> Row | None:
    """Return the first row with the most bytes in tensors."""
    return max(rows, key=total, default=None)


def total(row: Row) -> int:
    """Return the bytes in tensors of a row."""
    return sum(row[1][:-1])


class Rise(Struct, frozen=True):
    """Growth of memory between equal points of the steps of a recording that has no stacks and no marked steps.

    By categories: each step fills and empties its gradients or its activations once. By sizes alone: a training
    allocates the same sizes in the same order in every step; but so do layers of a forward pass, which keep them.
    """

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
