"""Numbers instead of names and lanes, and the join of two columns of ids. Knows nothing of events."""

from array import array

from diagnostics.evidence.trace.events import Lane

MAX_NAMES = 200_000
"""Names kept of one trace; all others are `(other)`."""
_SPARSE = 16
"""Numbers for each that occurs, up to which a table is smaller than a dict."""


class Names(dict[str, int]):
    """The number of each name; a new one gets the next and is listed."""

    def __init__(self, listed: list[str]) -> None:
        super().__init__()
        self._listed = listed

    def __missing__(self, name: str) -> int:
        if len(self) > MAX_NAMES:
            return self["(other)"]
        if len(self) == MAX_NAMES:
            name = "(other)"
        self[name] = index = len(self)
        self._listed.append(name)
        return index


class Lanes(dict[tuple[int | str | None, int | str | None], int]):
    """The number of each lane; a new one gets the next and is listed."""

    def __init__(self, listed: list[Lane]) -> None:
        super().__init__()
        self._listed = listed

    def __missing__(self, key: tuple[int | str | None, int | str | None]) -> int:
        self[key] = index = len(self)
        self._listed.append(Lane(*key))
        return index


def places(listed: "array[int]", wanted: "array[int]") -> "array[int]":
    """Where each wanted number stands last among the known ones; -1 = nowhere.

    Correlation ids are counted up, so a table by number does with a few bytes each; a dict takes over a hundred.
    """
    low, high = (min(listed), max(listed)) if listed else (0, -1)
    if high - low + 1 > _SPARSE * len(listed):
        place_of = {number: n for n, number in enumerate(listed)}
        return array("i", (place_of.get(number, -1) for number in wanted))
    table = array("i", (-1,)) * (high - low + 1)
    for n, number in enumerate(listed):
        table[number - low] = n
    return array("i", (table[number - low] if low <= number <= high else -1 for number in wanted))
