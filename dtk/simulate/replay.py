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
    held, most, at = 0, dict[Part, int](), dict[int, list[Part]]()
    peaks: dict[Part, int] = {}
    for number, (_, change, place) in enumerate(events):
        held += change
        if number < begin:
            continue
        key = part(place)
        if held > most.get(key, -1):
            most[key], peaks[key] = held, number
    for key, number in peaks.items():
        at.setdefault(number, []).append(key)
    found: dict[Part, Held] = {}
    by_category: Counter[str] = Counter()
    for number, (entry, change, _) in enumerate(events):
        if change:
            by_category[category(entry)] += change
        for key in at.get(number, ()):
            found[key] = {name: size for name, size in by_category.items() if size}
    return found
