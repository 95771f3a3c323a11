"""A picture with two logarithmic axes: bandwidth over message size. Knows figures and names, no report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics.report.markup import Markup, el, join
from diagnostics.report.shapes import LEFT, RIGHT, WIDTH, grid_line, picture
from diagnostics.words import bytes_text

STYLES = 6
"""Kinds of lines that the page's style tells apart."""
_HEIGHT, _BOTTOM, _TOP = 300.0, 30.0, 12.0
_INSET = 14.0
_ROOM = 1.25
"""Above and below the outermost figures, as a factor."""
_MARKS = 10
"""Sizes that are written under the picture, at most."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size."""

    size_bytes: int
    value: float
    """GB/s, above 0."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of the picture."""

    name: str
    points: tuple[Point, ...]


def log_log(curves: Sequence[Curve], label: str) -> Markup:
    """Legend and picture; the interval of each point is a line through it.

    Args:
        curves: with a point each at least.
        label: what the picture shows.
    """
    axes = _axes(curves)
    parts = [grid_line(f"{value:.3g} GB/s" if n == 0 else f"{value:.3g}", axes.y(value)) for n, value in axes.lines()]
    for number, curve in enumerate(curves):
        parts += _drawn(curve, axes, f"l{number % STYLES}")
    sizes = sorted({point.size_bytes for curve in curves for point in curve.points})
    every = -(-len(sizes) // _MARKS)
    parts += [
        el("text", bytes_text(size), x=f"{axes.x(size):.1f}", y=_HEIGHT - 8, text_anchor="middle")
        for size in sizes[::every]
    ]
    legend = el("div", *(_key(curve.name, f"l{n % STYLES}") for n, curve in enumerate(curves)), class_="legend")
    return join(legend, picture(parts, _HEIGHT, label))


@dataclass(frozen=True, slots=True)
class _Axes:
    """Where a size and a bandwidth stand."""

    first: int
    last: int
    low: float
    high: float

    def x(self, size_bytes: int) -> float:
        if self.first == self.last:
            return (LEFT + WIDTH - RIGHT) / 2
        part = math.log(size_bytes / self.first) / math.log(self.last / self.first)
        return LEFT + _INSET + part * (WIDTH - LEFT - RIGHT - 2 * _INSET)

    def y(self, value: float) -> float:
        part = math.log(min(max(value, self.low), self.high) / self.low) / math.log(self.high / self.low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)

    def lines(self) -> list[tuple[int, float]]:
        """Numbered values with a line across, the highest first: powers of ten, and 2 and 5 between few of them."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1,) if len(powers) > 4 else (1, 2, 5)
        marks = sorted((factor * 10.0**power for power in powers for factor in factors), reverse=True)
        return list(enumerate(mark for mark in marks if self.low <= mark <= self.high))


def _axes(curves: Sequence[Curve]) -> _Axes:
    points = [point for curve in curves for point in curve.points]
    values = [value for one in points for value in (one.value, one.low, one.high) if value is not None]
    sizes = [one.size_bytes for one in points]
    # One repeat far off, as an interval of few figures is, must not flatten the lines.
    middle = [one.value for one in points]
    low, high = max(min(values), min(middle) / 10), min(max(values), max(middle) * 10)
    return _Axes(min(sizes), max(sizes), low / _ROOM, high * _ROOM)


def _drawn(curve: Curve, axes: _Axes, style: str) -> list[Markup]:
    line = " ".join(f"{axes.x(one.size_bytes):.1f},{axes.y(one.value):.1f}" for one in curve.points)
    parts = [el("polyline", el("title", curve.name), points=line, class_=f"line {style}")]
    for one in curve.points:
        x = f"{axes.x(one.size_bytes):.1f}"
        told = f"{curve.name}, {bytes_text(one.size_bytes)}: {one.value:.3g} GB/s"
        if one.low is not None and one.high is not None:
            told += f" ({one.low:.3g} - {one.high:.3g})"
            low, high = f"{axes.y(one.low):.1f}", f"{axes.y(one.high):.1f}"
            parts.append(el("line", x1=x, x2=x, y1=low, y2=high, class_=f"line {style}"))
        parts.append(el("circle", el("title", told), cx=x, cy=f"{axes.y(one.value):.1f}", r=3, class_=f"line {style}"))
    return parts


def _key(name: str, style: str) -> Markup:
    """A short piece of the line and its name."""
    line = el("line", x1=0, x2=22, y1=5, y2=5, class_=f"line {style}")
    return el("span", el("svg", line, viewBox="0 0 22 10", class_="key", aria_hidden="true"), name)
