"""Histories as sequences of tokens: what follows a repeated past, and the smallest edit between two of them. Nested
loops need no extra rule: an outer loop's repeated suffix is longer. Knows no calls and no ranks.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

from msgspec import Struct


class Prediction(Struct, frozen=True):
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


EditKind = Literal["drop", "insert", "substitute", "swap"]
"""What the minority did to the majority's calls: left some out, added some, made another one, or made two in the
other order."""
MOST_CALLS = 63
"""Calls that one edit drops or inserts at most. A bucketed backward pass of a large model is some 40 calls."""
LONGEST = 512  # Calls compared behind the divergence.


class Edit(Struct, frozen=True):
    """One edit at the first call of both lists."""

    kind: EditKind
    count: int
    """Calls dropped, inserted, substituted or swapped."""
    agreeing: int
    """Calls behind it that both sides made alike."""


def smallest_edit(majority: Sequence[Hashable], minority: Sequence[Hashable], enough: int = 1) -> Edit | None:
    """Return the edit behind which the most calls agree; None when no single edit makes all later calls agree.

    Args:
        majority: tokens from the divergence on.
        minority: tokens from the same position on, which differ in the first.
        enough: calls behind the edit that must agree before it counts as seen.
    """
    majority_tokens, minority_tokens = tuple(majority[:LONGEST]), tuple(minority[:LONGEST])
    edits = [Edit("drop", by, agreeing) for by, agreeing in _shifts(majority_tokens, minority_tokens)]
    edits += [Edit("insert", by, agreeing) for by, agreeing in _shifts(minority_tokens, majority_tokens)]
    edits.append(Edit("substitute", 1, _agreement(majority_tokens[1:], minority_tokens[1:])))
    if len(majority_tokens) > 1 and len(minority_tokens) > 1 and majority_tokens[1::-1] == minority_tokens[:2]:
        rest = _agreement(majority_tokens[2:], minority_tokens[2:])
        if rest or len(majority_tokens) == 2 or len(minority_tokens) == 2:
            edits.append(Edit("swap", 2, 2 + rest))  # Both sides made the two calls, so they agree as well.
    proven = [edit for edit in edits if edit.agreeing >= enough]
    # A shift of a periodic history by further rounds agrees as well, over fewer calls. Of equal ones: the fewest calls.
    order: tuple[EditKind, ...] = ("swap", "substitute", "drop", "insert")
    return max(proven, key=lambda edit: (edit.agreeing, -edit.count, -order.index(edit.kind)), default=None)


def _shifts(longer: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> list[tuple[int, int]]:
    """Return (calls left away at the start, calls that agree then) for every shift that lines up all later calls."""
    lengths = common_prefixes((*other, None, *longer))[len(other) + 1 :]
    shifts = range(1, min(MOST_CALLS + 1, len(longer)))
    return [(by, lengths[by]) for by in shifts if 0 < lengths[by] == min(len(other), len(longer) - by)]


def _agreement(first: tuple[Hashable, ...], second: tuple[Hashable, ...]) -> int:
    """Return how many calls agree; 0 unless all do that both sides have."""
    size = min(len(first), len(second))
    return size if first[:size] == second[:size] else 0
