"""Bytes by category over time: the categories, and a stack of levels that stays small as moments pass."""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec import Struct, field

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer states"
ACTIVATIONS, BUFFERS, TEMPORARIES = "activations", "communication buffers", "temporaries"
KEPT, SAVED, UNKNOWN = "kept from earlier steps", "checkpoint copies", "not attributed"
RESERVED = "reserved, in no tensor"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, TEMPORARIES, KEPT, SAVED, UNKNOWN, RESERVED)
"""Kinds from the bottom of the stack to its top; only the last one is in no tensor."""
AT = {name: n for n, name in enumerate(KINDS)}
MAX_ROWS = 400
_LEAST_S = 1e-9
_LAST = len(KINDS) - 1
Row = tuple[float, tuple[int, ...]]
_Moment = tuple[int, float, list[int]]
"""Bytes in tensors, time, levels."""


class Stack(Struct):
    """Levels of all `KINDS` over time, at most `MAX_ROWS` rows kept.

    Of each stretch of time the lowest and the highest moment stay, so that peaks and valleys are as they were; a
    quiet time keeps its two ends.
    """

    start: float
    end: float
    levels: list[int]
    """Of the moment that was reached, in the order of `KINDS`; at first those of `start`. The last one is all that is
    reserved, 0 where nobody reserves; rows have what of it is in no tensor."""
    pinned: float | None = None
    """A moment that must stay, as the highest of its stretch: the peak where it is known before."""
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    """Bytes in tensors at the current moment."""
    _time: float = 0.0
    _stretch: int = 0
    _scale: float = 0.0
    _low: _Moment | None = None
    _high: _Moment | None = None
    _is_pinned: bool = False

    def __post_init__(self) -> None:
        """Add the first row."""
        self._scale = (MAX_ROWS // 2 - 2) / max(self.end - self.start, _LEAST_S)
        self._time, self.total = self.start, sum(self.levels[:-1])
        self.rows.append(_row((self.total, self.start, self.levels)))

    def move(self, time: float, changes: Iterable[tuple[int, int]]) -> None:
        """Apply all changes of one moment at once.

        Args:
            time: not before the last one.
            changes: (place in `KINDS`, bytes).
        """
        stretch = int((min(max(time, self.start), self.end) - self.start) * self._scale)
        if stretch != self._stretch:
            self._close(time if stretch > self._stretch + 1 else None)
            self._stretch = stretch
        self._time, levels = time, self.levels
        for at, change in changes:
            levels[at] += change
            if at != _LAST:
                self.total += change
        pinned = time == self.pinned
        if pinned or self._high is None or (self.total > self._high[0] and not self._is_pinned):
            self._high, self._is_pinned = (self.total, time, levels[:]), pinned
        if self._low is None or self.total < self._low[0]:
            self._low = (self.total, time, levels[:])

    def finish(self) -> list[Row]:
        """Return all rows in ascending order of time, including one for the end."""
        self._close(self.end)
        return self.rows

    def _close(self, until: float | None) -> None:
        """End a stretch; with `until` the levels are held to that moment."""
        rows = [_row(moment) for moment in (self._low, self._high) if moment is not None]
        if until is not None:
            rows += [_row((self.total, time, self.levels)) for time in (self._time, until)]
        for row in sorted(rows, key=itemgetter(0)):
            if self.rows[-1] != row:
                self.rows.append(row)
        self._low = self._high = None
        self._is_pinned = False


def _row(moment: _Moment) -> Row:
    tensors, time, levels = moment
    return time, (*(max(0, level) for level in levels[:-1]), max(0, levels[-1] - tensors))


def highest(rows: Sequence[Row]) -> Row | None:
    """Return the first row with the most bytes in tensors."""
    return max(rows, key=total, default=None)


def total(row: Row) -> int:
    """Return the bytes in tensors."""
    return sum(row[1][:-1])
