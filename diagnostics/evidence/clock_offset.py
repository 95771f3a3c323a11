"""The offset between two ranks' clocks, from collectives of one group that both made.

Nobody leaves a collective before all have come. So the call that a rank makes behind one comes, in true time, after
every other rank has come to that one: each position bounds the offset of the clocks from both sides. Calls that are
not waited for at once blur that by as many positions as are under way. Knows no verdict.
"""

from collections.abc import Mapping

from msgspec import Struct

SURE_POSITIONS = 16
SURE_RATIO = 500
"""Recorded time over the width of the bounds. Two runs of one program keep the same pace to a few thousandths, and
drift apart by that; ranks of one job do not drift."""
_UNDER_WAY = (1, 2, 4, 8, 16, 32)
"""Positions that may be under way at the same time."""


class Offset(Struct, frozen=True):
    """Bounds of the seconds by which the second clock is ahead of the first."""

    low_s: float
    high_s: float
    span_s: float
    """Recorded time that both have in common."""
    positions: int

    @property
    def value_s(self) -> float:
        """The middle: both bounds are met where ranks continue at once."""
        return (self.low_s + self.high_s) / 2

    @property
    def width_s(self) -> float:
        """How well it is known."""
        return self.high_s - self.low_s

    @property
    def sure(self) -> bool:
        """Whether the two went in step so closely that they are ranks of one job."""
        return self.positions >= SURE_POSITIONS and self.span_s >= SURE_RATIO * self.width_s

    def apart_s(self) -> float:
        """Seconds by which the clocks differ at least; 0 where they may agree."""
        return max(self.low_s, -self.high_s, 0.0)


def offset(first: Mapping[int, float], second: Mapping[int, float]) -> Offset | None:
    """Compare two ranks; None where they did not go in step, or have too little in common.

    Args:
        first: position in the group -> when the call was made (s, by this rank's clock). Only calls that all ranks must
            join before any returns: none with a root, none that is not waited for.
        second: of the other rank.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < 3:
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
