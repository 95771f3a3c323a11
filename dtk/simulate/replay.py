"""From the ledger's events to what was held at the highest use of each place of the second step. Plain arithmetic."""

from collections import Counter
from collections.abc import Callable, Sequence

Event = tuple[int, int, tuple[str, int]]
"""Entry, change in bytes, place. Entry -1 changes nothing: a place begins."""
Held = dict[str, int]
"""Category -> bytes."""
Part = tuple[str, str]
"""Region, and where in the model."""


def highest(
    events: Sequence[Event],
    begin: int,
    category: Callable[[int], str],
    part: Callable[[tuple[str, int]], Part],
) -> dict[Part, Held]:
    """Return what was held at the peak of each part of the step.

    Args:
        events: from the first storage of the set-up on.
        begin: index of the first event that counts; those before only say what is held then.
        category: of an entry.
        part: the part of the step that a place belongs to.
    """
    held, peaks = 0, dict[Part, tuple[int, int]]()
    for number, (_, change, place) in enumerate(events):
        held += change
        if number >= begin and held > peaks.get(key := part(place), (-1, 0))[0]:
            peaks[key] = held, number
    parts: dict[int, list[Part]] = {}
    for key, (_, number) in peaks.items():
        parts.setdefault(number, []).append(key)
    held_at: dict[Part, Held] = {}
    by_category: Counter[str] = Counter()
    for number, (entry, change, _) in enumerate(events):
        if change:
            by_category[category(entry)] += change
        for key in parts.get(number, ()):
            held_at[key] = {name: size for name, size in by_category.items() if size}
    return held_at
