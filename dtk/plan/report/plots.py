"""Drawings of the page: what the peak consists of, and memory and throughput over numbers of ranks.

Knows figures and names; colours are classes of the page's style.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnostics.report.markup import Markup, el, join
from diagnostics.report.shapes import LEFT, RIGHT, WIDTH, colour_legend, grid_line, picture, stacked
from dtk.plan.prediction import Category, Prediction
from dtk.plan.words import bytes_text, count_text

_HEIGHT, _BOTTOM, _TOP = 260.0, 28.0, 12.0
_NAMES = 225.0
"""Room for the names of strategies in front of bars."""
_LINES = 4
_GROWTH = 1.3
"""Room above the highest point of a logarithmic axis, as a factor."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line over numbers of ranks."""

    name: str
    points: tuple[tuple[int, float], ...]
    """(ranks, value), ascending."""
    style: str
    """Class of the line: `l0` to `l5`, `ideal`."""


def categories(bars: Sequence[tuple[str, Prediction]], used: Sequence[Category]) -> Markup:
    """What the peak of each consists of, one bar under the other.

    Args:
        bars: name and prediction of each.
        used: the categories, in the order of their colours.
    """
    rows = []
    for name, made in bars:
        values = tuple(float(made.memory.at_peak_bytes.get(category, 0)) for category in used)
        rows.append((name, values, bytes_text(made.memory.peak_bytes)))
    units = [[bytes_text(value) for value in values] for _, values, _ in rows]
    widest = max((sum(values) for _, values, _ in rows), default=0.0)
    drawing = stacked(rows, widest, used, units, "What the peak consists of", left=_NAMES)
    return join(colour_legend(used), drawing)


def memory_over_ranks(curves: Sequence[Curve], device_bytes: int | None) -> Markup:
    """Memory per rank; a dashed line is what the device has."""
    limits = () if device_bytes is None else ((f"device {bytes_text(device_bytes)}", float(device_bytes)),)
    return _over_ranks(curves, bytes_text, "Memory per rank over numbers of ranks", limits)


def speed_over_ranks(curves: Sequence[Curve]) -> Markup:
    """Tokens/s of the whole job, on logarithmic axes."""
    return _over_ranks(curves, count_text, "Tokens per second over numbers of ranks", (), True)


def _over_ranks(
    curves: Sequence[Curve],
    text: Callable[[float], str],
    label: str,
    limits: Sequence[tuple[str, float]],
    logarithmic: bool = False,
) -> Markup:
    ranks = sorted({count for curve in curves for count, _ in curve.points})
    values = [value for curve in curves for _, value in curve.points]
    top = max([*values, *(value for _, value in limits)], default=1.0) * _GROWTH
    low = min(values, default=1.0) / _GROWTH if logarithmic else 0.0
    axes = _Axes(ranks[0], ranks[-1], low, top, logarithmic)
    parts = [grid_line(text(value), axes.y(value)) for value in axes.lines()]
    parts += [_limit(name, axes.y(value)) for name, value in limits]
    for curve in curves:
        line = " ".join(f"{axes.x(count):.1f},{axes.y(value):.1f}" for count, value in curve.points)
        parts.append(el("polyline", el("title", curve.name), points=line, class_=f"line {curve.style}"))
        parts += [
            el(
                "circle",
                el("title", f"{curve.name}, {count:,} ranks: {text(value)}"),
                cx=f"{axes.x(count):.1f}",
                cy=f"{axes.y(value):.1f}",
                r=3,
                class_=f"line {curve.style}",
            )
            for count, value in curve.points
        ]
    parts += [el("text", f"{n:,}", x=f"{axes.x(n):.1f}", y=_HEIGHT - 8, text_anchor="middle") for n in ranks]
    names = el("div", *(_key(curve) for curve in curves), class_="legend") if len(curves) > 1 else None
    return join(names, picture(parts, _HEIGHT, label))


def _key(curve: Curve) -> Markup:
    """A short piece of the line and its name."""
    line = el("line", x1=0, x2=22, y1=5, y2=5, class_=f"line {curve.style}")
    return el("span", el("svg", line, viewBox="0 0 22 10", class_="key", aria_hidden="true"), curve.name)


def _limit(name: str, y: float) -> Markup:
    line = el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="limit")
    return join(line, el("text", name, x=WIDTH - RIGHT, y=f"{y - 5:.1f}", text_anchor="end"))


@dataclass(frozen=True, slots=True)
class _Axes:
    """Where a number of ranks (logarithmic) and a value stand in the picture."""

    first: int
    last: int
    low: float
    high: float
    logarithmic: bool

    def x(self, ranks: int) -> float:
        if self.last == self.first:
            return (LEFT + WIDTH - RIGHT) / 2
        part = math.log(ranks / self.first) / math.log(self.last / self.first)
        return LEFT + 14 + part * (WIDTH - LEFT - RIGHT - 28)

    def y(self, value: float) -> float:
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)

    def lines(self) -> list[float]:
        """Values with a line across."""
        steps = range(_LINES + 1)
        if not self.logarithmic:
            return [self.low + (self.high - self.low) * n / _LINES for n in steps]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1,) if len(powers) > _LINES else (1, 2, 5)
        marks = (factor * 10.0**power for power in powers for factor in factors)
        return [mark for mark in marks if self.low <= mark <= self.high]
