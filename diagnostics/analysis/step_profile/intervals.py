"""Arithmetic on intervals (start, end) with start <= end, and on covers: disjoint intervals in order. Any unit."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise

Interval = tuple[int, int]
Cover = list[Interval]


def union(intervals: Iterable[Interval]) -> Cover:
    """Return the union of the intervals. Empty intervals are dropped."""
    result: Cover = []
    rows = sorted(intervals)
    if not rows:
        return result
    first, last = rows[0]
    for start, end in rows:
        if start > last:
            if last > first:
                result.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    if last > first:
        result.append((first, last))
    return result


def total(cover: Cover) -> int:
    """Return the total length of a cover."""
    return sum(end - start for start, end in cover)


def intersect(cover: Cover, other: Cover) -> Cover:
    """Return the intersection of two covers. This is fast if one of them is short."""
    short, long = (cover, other) if len(cover) < len(other) else (other, cover)
    result: Cover = []
    n = 0
    for start, end in short:
        n = max(n, bisect_right(long, (start, start)) - 1)
        while n < len(long) and long[n][0] < end:
            first, last = max(start, long[n][0]), min(end, long[n][1])
            if first < last:
                result.append((first, last))
            if long[n][1] > end:  # it may reach into the next one
                break
            n += 1
    return result


def subtract(cover: Cover, other: Cover) -> Cover:
    """Return the part of `cover` that `other` does not cover. This is fast if `cover` is short."""
    result: Cover = []
    n = 0
    for start, end in cover:
        n = max(n, bisect_right(other, (start, start), n) - 1)
        while n < len(other) and other[n][0] < end:
            first, last = other[n]
            if first > start:
                result.append((start, first))
            if last > start:
                start = last
            if last > end:  # it may reach into the next one
                break
            n += 1
        if start < end:
            result.append((start, end))
    return result


def holes(cover: Cover, start: int, end: int, least: int) -> Cover:
    """Return the uncovered stretches between `start` and `end` that last at least `least` (at least 1)."""
    if end <= start or least < 1:
        return []
    inside = [span for span in cover if span[1] > start and span[0] < end]
    edges = [(start, start), *inside, (end, end)]
    return [(last, first) for (_, last), (first, _) in pairwise(edges) if first - last >= least]


class Ruler:
    """Measures how much of an interval a cover covers, in logarithmic time."""

    def __init__(self, cover: Cover) -> None:
        self.cover = cover
        self._starts = [start for start, _ in cover]
        self._sums = [0, *accumulate(end - start for start, end in cover)]

    def until(self, point: int) -> int:
        """Return the covered length before `point`."""
        n = bisect_right(self._starts, point)
        return self._sums[n] - max(0, self.cover[n - 1][1] - point) if n else 0

    def within(self, start: int, end: int) -> int:
        """Return the covered length between `start` and `end`."""
        return self.until(end) - self.until(start) if end > start else 0

    def start_of(self, point: int) -> int | None:
        """Return the start of the interval that contains `point`; None if there is none."""
        n = bisect_right(self._starts, point)
        return self._starts[n - 1] if n and self.cover[n - 1][1] >= point else None

    def last_end(self, point: int) -> int | None:
        """Return the end of the last interval that starts before `point`, at most `point`; None if there is none."""
        n = bisect_right(self._starts, point - 1)
        return min(self.cover[n - 1][1], point) if n else None
