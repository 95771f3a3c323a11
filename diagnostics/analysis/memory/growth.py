"""Growth per step: a robust slope, and whether a series goes up steadily. Knows no evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

MAX_POINTS = 200  # A convention: 25 points for each eighth of a series, whose medians are compared.


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one series over steps."""

    per_step_bytes: float
    """Theil-Sen: the median of the slopes between pairs of points."""
    first_half: float
    second_half: float
    """The same of each half: warm-up shows as a second half that is flat."""
    rising: float
    """Share of neighbouring stretches that go up, 0 to 1."""
    steps: int
    """From the first to the last."""


def growth(points: Sequence[tuple[int, int]]) -> Growth | None:
    """Of (step, bytes) ascending by step; None for fewer than 8 points."""
    if len(points) < 8:
        return None
    stride = -(-len(points) // MAX_POINTS)
    thinned = points[::stride]
    half, width = len(thinned) // 2, len(thinned) / 8
    eighths = [thinned[int(n * width) : max(int((n + 1) * width), int(n * width) + 1)] for n in range(8)]
    medians = [median(value for _, value in part) for part in eighths if part]
    return Growth(
        per_step_bytes=slope(thinned),
        first_half=slope(thinned[: half + 1]),
        second_half=slope(thinned[half:]),
        rising=sum(after > before for before, after in pairwise(medians)) / (len(medians) - 1),
        steps=points[-1][0] - points[0][0],
    )


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Median slope over pairs half a series apart: linear in time, and no outlier moves it."""
    half = max(1, len(points) // 2)
    slopes = [
        (points[n + half][1] - points[n][1]) / (points[n + half][0] - points[n][0])
        for n in range(len(points) - half)
        if points[n + half][0] > points[n][0]
    ]
    return median(slopes) if slopes else 0.0
