"""Reads the lines that trainers print for each step: loss, gradient norm, loss scale. One table of formats."""

import re
from array import array
from functools import cache
from itertools import accumulate, islice, repeat
from math import isfinite

from msgspec import Struct, field

from diagnostics.contract.files import table_beside
from diagnostics.evidence.logs.lines import COLOUR

MAX_POINTS = 200_000
"""Maximum number of steps kept per log; further ones are only counted."""
MAX_TIMES = 20_000  # Of steps that are kept.
LEAST = 10
"""Minimum number of steps for an analysis."""
_REPORTED = 2  # Minimum number of steps that are reported.
_N = rb"-?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|[nN]a[nN]|[iI]nf(?:inity)?)"


@cache
def _compiled(regex: bytes) -> re.Pattern[bytes]:
    reached = re.sub(rb"<to ([^>]*)>", rb"(?>[^\\n\\r]{0,400}?\1)", regex)
    return re.compile(reached.replace(b"<N>", _N))


_TABLE = table_beside(__file__)
_COLOUR = re.compile(COLOUR.pattern.encode())  # torchtitan prints each figure in its own.
FORMATS: dict[str, bytes] = {name: "".join(row["regex"]).encode() for name, row in _TABLE["formats"].items()}
"""Trainer -> pattern of a step."""
_WORDS: dict[str, bytes] = {name: row["word"].encode() for name, row in _TABLE["formats"].items()}
DATA_TIME = "".join(_TABLE["data_time"]["regex"]).encode()
"""Pattern of a step's time and its time waiting for data, in seconds."""
_DATA_WORDS = [word.encode() for word in _TABLE["data_time"]["words"]]
OVERFLOW = "".join(_TABLE["overflow"]).encode()


def _zeros() -> "array[float]":
    return array("d")


class Series(Struct):
    """The steps of one log in line order; NaN if a value was not printed."""

    lines: "array[int]" = field(default_factory=lambda: array("q"))
    step: "array[float]" = field(default_factory=_zeros)
    """Numbers of steps, or fractional epochs."""
    loss: "array[float]" = field(default_factory=_zeros)
    norm: "array[float]" = field(default_factory=_zeros)
    scale: "array[float]" = field(default_factory=_zeros)
    skipped: "array[float]" = field(default_factory=_zeros)
    """Number of steps skipped in the row (Megatron-LM prints one row for several steps)."""
    printed: "array[int]" = field(default_factory=lambda: array("b"))
    """Bit mask: 1 if a loss was printed, 2 if a norm was."""

    def is_non_finite(self) -> bool:
        """Return whether a printed loss or norm is not finite."""
        rows = zip(self.loss, self.norm, self.printed, strict=True)
        return any((bits & 1 and not isfinite(loss)) or (bits & 2 and not isfinite(norm)) for loss, norm, bits in rows)

    def has_skipped_all(self) -> bool:
        """Return whether all steps were skipped, so that no loss was printed."""
        return any(skip > 0 and not bits & 1 for skip, bits in zip(self.skipped, self.printed, strict=True))


class Steps(Struct):
    """The steps that all trainers printed into one log; filled block by block by `feed`."""

    series: dict[str, Series] = field(default_factory=dict)
    overflow_lines: "array[int]" = field(default_factory=lambda: array("q"))
    overflow_scales: "array[float]" = field(default_factory=_zeros)
    """The loss scale after each skipped step; NaN if it was not printed."""
    resumes: "array[int]" = field(default_factory=lambda: array("q"))
    """Lines that say that a state was loaded, or that the processes were started again, in ascending order."""
    data_times: list[tuple[int, float, float]] = field(default_factory=list)
    """Line of a step, its duration, and its time waiting for data (s)."""

    @property
    def last(self) -> int:
        """Line of the last step; 0 if there are none."""
        return max((series.lines[-1] for series in self.series.values() if series.lines), default=0)

    @property
    def first(self) -> int:
        """Line of the first step; 0 if there are none."""
        return min((series.lines[0] for series in self.series.values() if series.lines), default=0)

    @property
    def last_new(self) -> int:
        """Line that told the last step first: a progress bar tells it again when it is closed; 0 if there are none."""
        lines = [0]
        for series in self.series.values():
            at = len(series.step) - 1
            while at > 0 and series.step[at - 1] == series.step[-1]:
                at -= 1
            lines += series.lines[at : at + 1]
        return max(lines)

    def line_before(self, count: int) -> int:
        """Return the line of the `count`th last distinct step, 0 if there are fewer; what is above it ended no job."""
        latest = 0
        for series in self.series.values():
            seen: set[float] = set()
            for at, step in zip(reversed(series.lines), reversed(series.step), strict=True):
                seen |= {step} if step == step else set()
                if len(seen) >= count:
                    latest = max(latest, at)
                    break
        return latest

    def __bool__(self) -> bool:
        """Return whether there are enough steps for an analysis; a skipped step or a non-finite value suffices."""
        return (
            len(self.data_times) >= LEAST
            or bool(self.overflow_lines)
            or any(
                len(series.lines) >= _REPORTED or series.is_non_finite() or series.has_skipped_all()
                for series in self.series.values()
            )
        )

    def feed(self, data: bytes, number: int) -> None:
        """Read a block of whole lines, the first of which is `number`."""
        data = _COLOUR.sub(b"", data) if b"\x1b[" in data else data
        at = 0
        if b"verflow" in data or b"OVERFLOW!" in data:
            for match in _compiled(OVERFLOW).finditer(data):
                number, at = number + data.count(b"\n", at, match.start()), match.start()
                if len(self.overflow_lines) < MAX_POINTS:
                    self.overflow_lines.append(number)
                    self.overflow_scales.append(float(match["a"] or match["b"] or b"nan"))
        number -= data.count(b"\n", 0, at)
        if any(word in data for word in _DATA_WORDS):
            self._read_data_times(data, number)
        if b"loss" not in data:
            return
        for trainer, word in _WORDS.items():  # A script may print its own steps in addition to its trainer's.
            if word in data:
                self._read(trainer, data, number)

    def _read_data_times(self, data: bytes, number: int) -> None:
        at = 0
        for match in islice(_compiled(DATA_TIME).finditer(data), max(0, MAX_TIMES - len(self.data_times))):
            number, at = number + data.count(b"\n", at, match.start()), match.start()
            self.data_times.append((number, float(match["step"]), float(match["data"])))

    def _read(self, trainer: str, data: bytes, number: int) -> None:
        """Read the steps of one trainer, with few calls for the whole block."""
        regex = _compiled(FORMATS[trainer])
        parts = regex.split(data)
        between, *groups = (parts[n :: regex.groups + 1] for n in range(regex.groups + 1))
        if len(between) < 2:
            return
        series = self.series.setdefault(trainer, Series())
        if len(series.lines) >= MAX_POINTS:
            return
        # Column by column, which costs no call for each row.
        series.lines.extend([*accumulate(map(bytes.count, between[:-1], repeat(b"\n")), initial=number)][1:])
        columns = dict(zip(regex.groupindex, groups, strict=True))
        empty = [None] * len(groups[0])
        loss, norm = columns.get("loss", empty), columns.get("norm", empty)
        series.printed.extend([(1 if a else 0) + (2 if b else 0) for a, b in zip(loss, norm, strict=True)])
        for name in ("step", "loss", "norm", "scale", "skipped"):
            getattr(series, name).extend(map(float, [text or b"nan" for text in columns.get(name, empty)]))
