"""The offset between two ranks' clocks, from collectives of one group that both issued.

No rank returns from a collective before all have entered it. So the next call of a rank is, in true time, after
every other rank entered that collective: each position bounds the offset of the clocks on both sides. Asynchronous
calls loosen the bounds by the number of positions in flight. Independent of verdicts.
"""

from collections.abc import Mapping

from msgspec import Struct

_LEAST_POSITIONS = 3  # Two positions contradict each other at no offset.
SURE_POSITIONS = 16  # Minimum number of positions that give the offset of two clocks.
SURE_RATIO = 500
"""Recorded time over the width of the bounds. Two runs of one program proceed at the same rate to within a few
thousandths and drift apart by that; ranks of one job do not."""
_UNDER_WAY = (1, 2, 4, 8, 16, 32)  # Numbers of positions that may be in flight at the same time.


class Offset(Struct, frozen=True):
    """Bounds of the time in seconds by which the second clock is ahead of the first."""

    low_s: float
    high_s: float
    span_s: float
    """Recorded time that both ranks share."""
    positions: int

    @property
    def value_s(self) -> float:
        """Return the midpoint; both bounds are tight if ranks continue at once."""
        return (self.low_s + self.high_s) / 2

    @property
    def width_s(self) -> float:
        """Return the uncertainty of the offset."""
        return self.high_s - self.low_s

    @property
    def sure(self) -> bool:
        """Return whether the two proceeded closely enough in step to be ranks of one job."""
        return self.positions >= SURE_POSITIONS and self.span_s >= SURE_RATIO * self.width_s

    def apart_s(self) -> float:
        """Return the minimum difference of the clocks in seconds; 0 if they may agree."""
        return max(self.low_s, -self.high_s, 0.0)


def offset(first: Mapping[int, float], second: Mapping[int, float]) -> Offset | None:
    """Compare two ranks; return None if they did not proceed in step, or share too few positions.

    Both map a position in the group to the time of the call (s, by the rank's clock). Only synchronous calls that all
    ranks must enter before any returns, so none with a root.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < _LEAST_POSITIONS:
        return None
    span_s = min(calls[common[-1]] - calls[common[0]] for calls in (first, second))
    for under_way in _UNDER_WAY:
        low_s = max((second[at] - first[at + under_way] for at in common if at + under_way in first), default=None)
        high_s = min((second[at + under_way] - first[at] for at in common if at + under_way in second), default=None)
        if low_s is None or high_s is None:
            return None
        if low_s <= high_s:
            return Offset(low_s, high_s, span_s, len(common))
    return None
