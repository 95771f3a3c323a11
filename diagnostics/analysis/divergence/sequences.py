"""Histories as sequences of tokens: the token expected after a repeated suffix, and the smallest edit between two
histories. Nested loops need no extra rule: an outer loop has the longer suffix. Knows neither calls nor ranks.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

from msgspec import Struct


class Prediction(Struct, frozen=True):
    """The calls that a periodic history is expected to continue with."""

    context: int
    """Length of the repeated suffix."""
    round: int
    """Distance between the two occurrences: the last `round` calls are expected to come next, in order."""

    @property
    def whole(self) -> bool:
        """Whether the repeated suffix covers a complete round."""
        return self.context >= self.round


def predict(past: Sequence[Hashable], following: Hashable | None = None) -> Prediction | None:
    """Find the longest suffix of `past` that occurred before, the latest of equally long ones; None if there is none.

    `past` are the calls of one rank, oldest first. If `following` is given, only occurrences that it followed count.
    """
    size = len(past)
    lengths = common_prefixes(past[::-1])
    candidates = [at for at in range(1, size) if lengths[at] and (following is None or past[size - at] == following)]
    best = max(candidates, key=lambda at: (lengths[at], -at), default=None)
    return Prediction(lengths[best], best) if best is not None else None


def common_prefixes(tokens: Sequence[Hashable]) -> list[int]:
    """Return for each index the length of the common prefix of `tokens` and its suffix there (Z-function, O(n))."""
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
"""How the minority's calls differ from the majority's: some are left out, some are added, one is another call, or two
are in the opposite order."""
MOST_CALLS = 63
"""Maximum number of calls that one edit drops or inserts. The backward pass of a large model has about 40 buckets."""
LONGEST = 512  # Maximum number of calls compared after the divergence.


class Edit(Struct, frozen=True):
    """One edit at the first call of both histories."""

    kind: EditKind
    count: int
    """Number of calls dropped, inserted, substituted or swapped."""
    agreeing: int
    """Number of later calls that are the same on both sides; of a swap, the two calls as well."""


def smallest_edit(majority: Sequence[Hashable], minority: Sequence[Hashable], enough: int = 1) -> Edit | None:
    """Return the edit after which the most calls agree, or None if no single edit makes all later calls agree.

    The first tokens of both sides differ; at least `enough` calls must agree after the edit.
    """
    majority_tokens, minority_tokens = tuple(majority[:LONGEST]), tuple(minority[:LONGEST])
    edits = [Edit("drop", by, agreeing) for by, agreeing in _shifts(majority_tokens, minority_tokens)]
    edits += [Edit("insert", by, agreeing) for by, agreeing in _shifts(minority_tokens, majority_tokens)]
    edits.append(Edit("substitute", 1, _agreement(majority_tokens[1:], minority_tokens[1:])))
    if len(majority_tokens) > 1 and len(minority_tokens) > 1 and majority_tokens[1::-1] == minority_tokens[:2]:
        rest = _agreement(majority_tokens[2:], minority_tokens[2:])
        if rest or len(majority_tokens) == 2 or len(minority_tokens) == 2:
            edits.append(Edit("swap", 2, 2 + rest))  # Both sides made the two calls, so they count as agreeing.
    proven = [edit for edit in edits if edit.agreeing >= enough]
    # A shift of a periodic history by more rounds agrees as well, but over fewer calls. A tie goes to the fewest calls.
    order: tuple[EditKind, ...] = ("swap", "substitute", "drop", "insert")
    return max(proven, key=lambda edit: (edit.agreeing, -edit.count, -order.index(edit.kind)), default=None)


def _shifts(longer: tuple[Hashable, ...], shorter: tuple[Hashable, ...]) -> list[tuple[int, int]]:
    """Return (number of calls skipped, number of calls that then agree) for each shift that aligns all later calls."""
    lengths = common_prefixes((*shorter, None, *longer))[len(shorter) + 1 :]
    shifts = range(1, min(MOST_CALLS + 1, len(longer)))
    return [(by, lengths[by]) for by in shifts if 0 < lengths[by] == min(len(shorter), len(longer) - by)]


def _agreement(first: tuple[Hashable, ...], second: tuple[Hashable, ...]) -> int:
    """Return the number of calls that both sides have if all of them agree, else 0."""
    size = min(len(first), len(second))
    return size if first[:size] == second[:size] else 0
