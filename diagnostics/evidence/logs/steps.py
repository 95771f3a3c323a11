"""Reads the lines that trainers print of their steps: loss, gradient norm, loss scale. One table of formats."""

import re
from array import array
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, repeat
from math import isfinite

MAX_POINTS = 200_000
"""Steps of one log that are kept; the rest is only counted."""
LEAST = 10
"""Steps of a log that show a course."""
_N = rb"-?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|[nN]a[nN]|[iI]nf(?:inity)?)"


@cache
def _compiled(regex: bytes) -> re.Pattern[bytes]:
    """Compile a format: `<N>` is a figure, `<to X>` all of the line up to the first X, which is never tried again."""
    reached = re.sub(rb"<to ([^>]*)>", rb"(?>[^\\n\\r]{0,400}?\1)", regex)
    return re.compile(reached.replace(b"<N>", _N))


FORMATS: dict[str, bytes] = {
    "Hugging Face Trainer": (
        rb"\{'loss': '?(?P<loss><N>)'?(?:<to 'grad_norm': '?>(?P<norm><N>))?(?:<to 'epoch': '?>(?P<step><N>))?"
    ),
    "Megatron-LM": (
        rb"iteration +(?P<step>\d{1,12})/ *\d+ \|(?:<to lm loss: >(?P<loss><N>))?<to loss scale: >(?P<scale><N>)"
        rb"(?:<to grad norm: >(?P<norm><N>))?<to skipped iterations: {1,8}>(?P<skipped>\d{1,9})"
    ),
    "fairseq": (
        rb"epoch \d{1,9}:<to  loss=>(?P<loss><N>)<to num_updates=>(?P<step>\d{1,12})"
        rb"(?:<to gnorm=>(?P<norm><N>))?(?:<to loss_scale=>(?P<scale><N>))?"
    ),
    "MMEngine": (
        rb"(?:Iter|Epoch)\(train\) {0,3}(?:\[\d{1,9}\])?\[ *(?P<step>\d{1,12})/<to \bloss: >(?P<loss><N>)"
        rb"(?:<to grad_norm: >(?P<norm><N>))?"
    ),
    "mmcv": rb"Iter \[(?P<step>\d{1,12})/<to , loss: >(?P<loss><N>)(?:, grad_norm: (?P<norm><N>))?",
    "Lightning": (
        rb"Epoch \d{1,9}: {1,4}\d{1,3}%(?>[^\n\r]{0,400}?\b(?P<step>\d{1,12})/\d+ \[)"
        rb"<to \b(?:train[_/])?loss(?:_step)?=>(?P<loss><N>)"
    ),
    "step and loss": (
        rb"\b(?:[sS]teps?|iter(?:ation)?)\b[^\w\n]{1,4}(?P<step>\d{1,9})\b[^\n\r]{0,40}?\b(?<!val )(?<!eval )"
        rb"(?:train[ _]|lm )?loss\b[ :=]{1,3}(?P<loss><N>)"
        rb"(?:[^\n\r]{0,40}?\b(?:grad[ _]?)?norm[ :=]{1,3}(?P<norm><N>))?"
    ),
}
"""Trainer -> a step of it. The last is torchtitan's, DeepSpeed's, nanoGPT's and that of many scripts."""
_WORDS = {
    "Hugging Face Trainer": b"{'loss'", "Megatron-LM": b"loss scale", "fairseq": b"num_updates=",
    "MMEngine": b"(train)", "mmcv": b"Iter [", "Lightning": b"Epoch ", "step and loss": b"loss",
}  # fmt: skip
"""Trainer -> what stands in each of its steps, which is searched for first."""
OVERFLOW = (
    rb"(?:(?:OVERFLOW!|Overflow detected\.)<to Attempted loss scale: ><N>(?:, reducing to (?P<a><N>))?"
    rb"|[gG]radient overflow<to (?:reducing loss scale to|setting loss scale to):? ?>(?P<b><N>))"
)
"""DeepSpeed's, apex's and fairseq's line about a step that was skipped because a gradient overflowed in float16."""


def _zeros() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Series:
    """The steps of one log in the order of its lines; NaN = not printed."""

    lines: "array[int]" = field(default_factory=lambda: array("q"))
    step: "array[float]" = field(default_factory=_zeros)
    """Numbers of steps, or epochs with a fraction."""
    loss: "array[float]" = field(default_factory=_zeros)
    norm: "array[float]" = field(default_factory=_zeros)
    scale: "array[float]" = field(default_factory=_zeros)
    skipped: "array[float]" = field(default_factory=_zeros)
    """1 where the step was skipped."""
    printed: "array[int]" = field(default_factory=lambda: array("b"))
    """Bits: 1 = a loss was printed, 2 = a norm."""

    def is_non_finite(self) -> bool:
        """Whether a loss or a norm was printed that is not finite."""
        rows = zip(self.loss, self.norm, self.printed, strict=True)
        return any((bits & 1 and not isfinite(loss)) or (bits & 2 and not isfinite(norm)) for loss, norm, bits in rows)


@dataclass(slots=True)
class Steps:
    """Fed the lines of a log in blocks."""

    series: dict[str, Series] = field(default_factory=dict)
    overflow_lines: "array[int]" = field(default_factory=lambda: array("q"))
    overflow_scales: "array[float]" = field(default_factory=_zeros)
    """What each skipped step reduced the loss scale to; NaN = not told."""

    @property
    def last(self) -> int:
        """Line of the last step; 0 without one."""
        return max((series.lines[-1] for series in self.series.values()), default=0)

    def after(self, line: int) -> int:
        """Return how many different steps were printed behind a line."""
        rows = [zip(series.lines, series.step, strict=True) for series in self.series.values()]
        return max((len({step for at, step in row if at > line and step == step}) for row in rows), default=0)

    def __bool__(self) -> bool:
        """Whether there are enough of them to say anything; a figure that is not finite says it alone."""
        return bool(self.overflow_lines) or any(
            len(series.lines) >= LEAST or series.is_non_finite() for series in self.series.values()
        )

    def feed(self, data: bytes, number: int) -> None:
        """Read whole lines of which the first is `number`."""
        at = 0
        if b"verflow" in data or b"OVERFLOW!" in data:
            for match in _compiled(OVERFLOW).finditer(data):
                number, at = number + data.count(b"\n", at, match.start()), match.start()
                if len(self.overflow_lines) < MAX_POINTS:
                    self.overflow_lines.append(number)
                    self.overflow_scales.append(float(match["a"] or match["b"] or b"nan"))
        if b"loss" not in data:
            return
        number -= data.count(b"\n", 0, at)
        for trainer, word in _WORDS.items():  # A script may print steps of its own beside its trainer's.
            if word in data:
                self._read(trainer, data, number)

    def _read(self, trainer: str, data: bytes, number: int) -> None:
        """Read what one trainer prints, by a few calls for the whole block."""
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
