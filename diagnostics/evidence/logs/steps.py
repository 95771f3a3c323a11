"""Reads the lines that trainers print for each step: loss, gradient norm, loss scale. One table of formats."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, islice, pairwise, repeat
from math import inf, isfinite, nan
from statistics import median

from msgspec import Struct, field

from diagnostics.contract.files import table_beside
from diagnostics.evidence.logs.lines import COLOUR
from diagnostics.evidence.logs.patterns import ZONE_S, moment

MAX_POINTS = 200_000
"""Maximum number of steps kept per log; further ones are only counted."""
LEAST = 10
"""Minimum number of steps for an analysis."""
NEARLY_ALL = 0.9  # Chosen: a row of several steps counts as skipped only if at least this part of them was.
_STARTED = 3  # Chosen: number of the first row of an epoch that says nothing of the start of its workers.
_REPORTED = 2  # Minimum number of steps that are reported.
_STAMP = 120  # Characters of a line in which its date stands.
_NEAR = 256  # Rows on either side of a line by which the ranks that print each step are counted.
_DATED = 200  # Number of steps of a block whose dates are read.
_KEPT = ("step", "loss", "norm", "scale", "skipped", "total", "data_s", "size", "lr")
_PARTS = ("sample", "epoch", "s", "ms", "per_s", "all_skipped")
"""Groups of the formats that become columns, and those that columns are calculated from."""


@cache
def _compiled(regex: bytes) -> re.Pattern[bytes]:
    for name, part in _TABLE["parts"].items():
        regex = regex.replace(f"<{name}>".encode(), "".join(part).encode())
    return re.compile(re.sub(rb"<to ([^>]*)>", rb"(?>[^\\n\\r]{0,400}?\1)", regex))


_TABLE = table_beside(__file__)
_COLOUR = re.compile(COLOUR.pattern.encode())  # torchtitan prints each figure in its own.
FORMATS: dict[str, bytes] = {name: "".join(row["regex"]).encode() for name, row in _TABLE["formats"].items()}
"""Trainer -> pattern of a step."""
_WORDS: dict[str, bytes] = {name: row["word"].encode() for name, row in _TABLE["formats"].items()}
BARS = "".join(_TABLE["bars"]).encode()
OVERFLOW = "".join(_TABLE["overflow"]).encode()
_CHANGE = re.compile("".join(_TABLE["change"]).encode())
_SETTINGS, _MOST = [name.encode() for name in _TABLE["setting"]], 50  # Changes that are read of a block of lines.
_VALUE, _SHIFT = _TABLE["value"].encode(), "".join(_TABLE["shift"]).encode()
_REMARK = 2000  # Chosen: characters between two steps in which a change is announced.


@lru_cache(10_000)  # Most texts between two steps differ in numbers only.
def _remarks(text: bytes) -> frozenset[bytes]:
    return frozenset(_CHANGE.findall(text))


def _zeros() -> "array[float]":
    return array("d")


class Series(Struct):
    """The steps of one log in line order; NaN if a value was not printed."""

    lines: "array[int]" = field(default_factory=lambda: array("q"))
    step: "array[float]" = field(default_factory=_zeros)
    """Numbers of steps over all epochs whose number is printed, or fractional epochs."""
    loss: "array[float]" = field(default_factory=_zeros)
    norm: "array[float]" = field(default_factory=_zeros)
    scale: "array[float]" = field(default_factory=_zeros)
    skipped: "array[float]" = field(default_factory=_zeros)
    """Number of steps skipped in the row (Megatron-LM prints one row for several steps)."""
    printed: "array[int]" = field(default_factory=lambda: array("b"))
    """Bit mask: 1 if a loss was printed, 2 if a norm was."""
    total: "array[float]" = field(default_factory=_zeros)
    """The number of steps, or of samples, up to which a trainer or a progress bar counts."""
    at_s: "array[float]" = field(default_factory=_zeros)
    """Date of the line (s since 1970, as if it were UTC)."""
    took_s: "array[float]" = field(default_factory=_zeros)
    """Printed duration of a step."""
    data_s: "array[float]" = field(default_factory=_zeros)
    """How much of it the step waited for its data."""
    size: "array[float]" = field(default_factory=_zeros)
    """Number of samples of a step."""
    lr: "array[float]" = field(default_factory=_zeros)
    so_far: tuple[float, float] = 0.0, 0.0
    """The last step, and the skipped steps up to it, where a trainer prints these."""
    first_epoch: float = 1.0
    """Number of the first epoch: 0 or 1."""

    def stands_for(self) -> list[float]:
        """Return for how many steps each row stands: those since the row before it, or since its epoch began."""
        base = 1 if self.step[0] % (self.total[0] or nan) else 0  # The number of the first step of an epoch.
        rows = zip([self.step[0], *self.step], self.step, self.total, strict=False)
        begun = ((before, step, (step - base) // (total or nan) * total + base - 1) for before, step, total in rows)
        return [max(1.0, step - max(before, begin)) for before, step, begin in begun]

    def is_non_finite(self) -> bool:
        """Return whether a printed loss or norm is not finite."""
        rows = zip(self.loss, self.norm, self.printed, strict=True)
        return any((bits & 1 and not isfinite(loss)) or (bits & 2 and not isfinite(norm)) for loss, norm, bits in rows)


class Steps(Struct):
    """The steps that all trainers printed into one log; filled block by block by `feed`."""

    series: dict[str, Series] = field(default_factory=dict)
    overflow_lines: "array[int]" = field(default_factory=lambda: array("q"))
    overflow_scales: "array[float]" = field(default_factory=_zeros)
    """The loss scale after each skipped step; NaN if it was not printed."""
    resumes: "array[int]" = field(default_factory=lambda: array("q"))
    """Lines that say that a state was loaded, or that the processes were started again, in ascending order."""
    announced: dict[bytes, set[int]] = field(default_factory=dict)
    """A line that names a change of the data, the loss or the schedule, without its numbers, or what was changed -> the
    steps from there."""
    bars: Series = field(default_factory=Series)
    """The states of progress bars, also of other work than steps."""
    near_s: float = 0.0
    """A time (s since 1970) in the year of the log, for dates without a year; 0 if unknown."""

    @property
    def data_times(self) -> list[tuple[int, float, float, float]]:
        """Line of a step, its duration, its time waiting for data (s), and for how many steps it stands.

        Without the first row if it includes the start of the workers, and if there are few, without the first of every
        epoch, which include it too: some trainers print means or medians of the last 20 steps.
        """
        for each in self.series.values():
            count = each.stands_for()
            first = 0 if len(count) < 2 or count[0] > count[1] else 1
            count[:1] = count[1:2] or count
            since = [step % (total or inf) / n for step, total, n in zip(each.step, each.total, count, strict=True)]
            rows = [*zip(each.lines, each.took_s, each.data_s, count, since, strict=False)][first:]
            least = _STARTED if len(rows) < LEAST else 0
            if kept := [row[:4] for row in rows if row[1] == row[1] and row[2] == row[2] and not row[4] <= least - 1]:
                return kept
        return []

    @property
    def last(self) -> int:
        """Line of the last step; 0 if there are none."""
        return max((series.lines[-1] for series in self.series.values() if series.lines), default=0)

    @property
    def first(self) -> int:
        """Line of the first step; 0 if there are none."""
        return min((series.lines[0] for series in self.series.values() if series.lines), default=0)

    @property
    def span_s(self) -> tuple[float, ...]:
        """The times of the first and the last step; none if steps are too rare to tell the zone of their dates."""
        dated = sorted(at for series in self.series.values() for at in series.at_s if at == at) or [0.0]
        rows = sum(len(series.lines) for series in self.series.values())
        return (dated[0], dated[-1]) if 0 < dated[-1] - dated[0] <= ZONE_S * (rows - 1) else ()

    def line_before(self, count: int) -> int:
        """Return the line of the `count`th last distinct step, 0 if there are fewer; what is above it ended no job."""
        latest = 0
        for series in self.series.values():
            seen: set[float] = set()
            for at, step in zip(reversed(series.lines), reversed(series.step), strict=True):
                seen.add(step if step == step else -at)  # A line without a number is a step of its own.
                if len(seen) >= count:
                    latest = max(latest, at)
                    break
        return latest

    def restarted(self, line: int, behind: int) -> bool:
        """Return whether the steps below a line begin again, further `behind` than those of peers are."""
        parts = ((each.step, bisect_right(each.lines, line)) for each in self.series.values())
        return any(at and min(step[at:], default=inf) < step[at - 1] - behind for step, at in parts)

    def further(self, line: int, end: float = inf) -> int:
        """Return how many different steps between two lines are above the last one in front of them."""
        most = 0
        for series in self.series.values():
            first, behind = bisect_right(series.lines, line), bisect_left(series.lines, end)
            floor = series.step[first - 1] if first else -inf
            most = max(most, len({step for step in series.step[first:behind] if not step <= floor}))
        return most

    def fewer(self, line: int) -> bool:
        """Return whether fewer ranks print a step below a line than above it, if several print each step."""
        places = [(each.step, bisect_right(each.lines, line)) for each in self.series.values()]
        parts = ((Counter(step[max(0, at - _NEAR) : at]), Counter(step[at : at + _NEAR])) for step, at in places)
        pairs = ((above, [count for step, count in below.items() if step not in above]) for above, below in parts)
        return any(above and below and max(below) < median(above.values()) for above, below in pairs)

    def __bool__(self) -> bool:
        """Return whether there are enough steps for an analysis; a skipped step or a non-finite value suffices."""
        return bool(self.overflow_lines) or any(
            len(each.lines) >= _REPORTED
            or each.is_non_finite()
            or any(skip > 0 and not bits & 1 for skip, bits in zip(each.skipped, each.printed, strict=True))
            for each in self.series.values()
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
        if b"it/s" in data or b"s/it" in data:
            self._read(BARS, self.bars, data, number)
        if not any(word in data for word in (b"oss", _WORDS["DeepSpeed"], _WORDS["BasicSR"])):
            return
        for setting in (setting for setting in _SETTINGS if setting in data):
            value, shift = (_compiled(pattern.replace(b"<S>", setting)) for pattern in (_VALUE, _SHIFT))
            if len({*value.findall(data)}) > 1:  # Most never change, which takes less time to see.
                for change in islice(shift.finditer(data), _MOST):
                    self.announced.setdefault(setting, set()).add(number + data.count(b"\n", 0, change.end("at")))
        for trainer, word in _WORDS.items():  # A script may print its own steps in addition to its trainer's.
            series = self.series.get(trainer, Series())
            if word in data and self._read(FORMATS[trainer], series, data, number):
                self.series[trainer] = series

    def _read(self, pattern: bytes, series: Series, data: bytes, number: int) -> bool:
        """Read the steps of one trainer, with few calls for the whole block; return whether there are any."""
        regex = _compiled(pattern)
        parts = regex.split(data)
        between, *groups = (parts[n :: regex.groups + 1] for n in range(regex.groups + 1))
        if len(between) < 2 or len(series.lines) >= MAX_POINTS:
            return len(between) > 1
        # Column by column, which costs no call for each row.
        newlines = [*map(bytes.count, between[:-1], repeat(b"\n"))]
        series.lines.extend([*accumulate(newlines, initial=number)][1:])
        for text, lines, line in zip(between[:-1], newlines, series.lines[-len(newlines) :], strict=True):
            if lines > 1 and len(text) <= _REMARK:
                for about in _remarks(re.sub(rb"\d+", b"#", text)):
                    if len(self.announced) < MAX_POINTS:
                        self.announced.setdefault(about, set()).add(line)
        columns = dict(zip(regex.groupindex, groups, strict=True))
        empty = [None] * len(groups[0])
        loss, norm = columns.get("loss", empty), columns.get("norm", empty)
        series.printed.extend([(1 if a else 0) + (2 if b else 0) for a, b in zip(loss, norm, strict=True)])
        value = {name: [float(text or b"nan") for text in columns.get(name, empty)] for name in (*_KEPT, *_PARTS)}
        series.first_epoch = min(series.first_epoch, *value["epoch"])
        if "epoch" in columns:  # Counts every epoch anew.
            rows = zip(value["step"], value["epoch"], value["total"], strict=True)
            value["step"] = [
                n + (epoch - series.first_epoch) * total if epoch == epoch else n for n, epoch, total in rows
            ]
        if "sample" in columns:
            rows = zip(value["sample"], value["epoch"], value["total"], strict=True)
            value["step"] = [n / total + (epoch if epoch == epoch else 0.0) for n, epoch, total in rows]
        if "all_skipped" in columns:
            past = [series.so_far, *zip(value["step"], value["all_skipped"], strict=True)]
            since = ((steps - step, skips - skip) for (step, skip), (steps, skips) in pairwise(past))
            value["skipped"] = [skips if skips >= NEARLY_ALL * steps > 0 else 0.0 for steps, skips in since]
            series.so_far = past[-1]
        durations = zip(value["s"], value["ms"], value["per_s"], strict=True)
        value["took_s"] = [s if s == s else ms / 1000 if ms == ms else 1 / per_s for s, ms, per_s in durations]
        value["at_s"] = self._dates(between)
        for name in (*_KEPT, "took_s", "at_s"):
            getattr(series, name).extend(value[name])
        return True

    def _dates(self, between: Sequence[bytes]) -> list[float]:
        """Return the dates of the lines of steps, each behind one of these texts; NaN without one."""
        dates = [nan] * (len(between) - 1)
        every = max(1, len(dates) // _DATED)
        for n in range(len(dates) - 1, -1, -every):
            head = between[n][between[n].rfind(b"\n") + 1 :][:_STAMP].decode("latin-1")
            dates[n] = moment(head, self.near_s) or nan
        return dates
