"""Which call comes next: as after the longest part of a rank's own past that was there before.
Nested loops need no extra rule: an outer loop's repeated suffix is longer.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a history leads to."""

    context: int
    """Length of the repeated past."""
    round: int
    """Calls between the two occurrences: the last `round` calls are what comes next, in order."""

    @property
    def whole(self) -> bool:
        """Whether a complete round was seen at least twice."""
        return self.context >= self.round


def predict(past: Sequence[Hashable], following: Hashable | None = None) -> Prediction | None:
    """Return the longest repeated past, of several equally long ones the youngest; None when nothing repeats.

    Args:
        past: the calls of one rank, oldest first.
        following: count only occurrences that this call came after.
    """
    size = len(past)
    lengths = common_prefixes(past[::-1])
    candidates = [at for at in range(1, size) if lengths[at] and (following is None or past[size - at] == following)]
    best = max(candidates, key=lambda at: (lengths[at], -at), default=None)
    return Prediction(lengths[best], best) if best is not None else None


def common_prefixes(tokens: Sequence[Hashable]) -> list[int]:
    """Return for each place how many tokens from there on equal those from the beginning on (Z-function, linear)."""
    size = len(tokens)
    lengths = [0] * size
    if size:
        lengths[0] = size
    left = right = 0
    for at in range(1, size):
        length = min(right - at, lengths[at - left]) if at < right else 0
        while at + length < size and tokens[length] == tokens[at + length]:
            length += 1
        lengths[at] = length
        if at + length > right:
            left, right = at, at + length
    return lengths
