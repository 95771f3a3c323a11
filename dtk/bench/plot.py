"""A picture with two logarithmic axes: bandwidth over message size. Knows figures and names, no report."""

from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics.contract.formatting import bytes_text
from diagnostics.report.curves import Axes, dot, interval, line, line_legend, tick
from diagnostics.report.markup import Markup, join
from diagnostics.report.shapes import grid_line, picture

STYLES = 6
"""Kinds of lines that the page's style tells apart."""
_HEIGHT = 300.0
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
    highest, *others = reversed(axes.marks())
    parts = [grid_line(f"{highest:.3g} GB/s", axes.y(highest))]
    parts += [grid_line(f"{value:.3g}", axes.y(value)) for value in others]
    for number, curve in enumerate(curves):
        parts += _drawn(curve, axes, _style(number))
    sizes = sorted({point.size_bytes for curve in curves for point in curve.points})
    every = -(-len(sizes) // _MARKS)
    parts += [tick(bytes_text(size), size, axes) for size in sizes[::every]]
    legend = line_legend([(curve.name, _style(number), None) for number, curve in enumerate(curves)])
    return join(legend, picture(parts, _HEIGHT, label))


def _axes(curves: Sequence[Curve]) -> Axes:
    points = [point for curve in curves for point in curve.points]
    values = [value for one in points for value in (one.value, one.low, one.high) if value is not None]
    sizes = [one.size_bytes for one in points]
    # One repeat far off, as an interval of few figures is, must not flatten the lines.
    middle = [one.value for one in points]
    low, high = max(min(values), min(middle) / 10), min(max(values), max(middle) * 10)
    return Axes(min(sizes), max(sizes), low / _ROOM, high * _ROOM, _HEIGHT, log_x=True, log_y=True)


def _style(number: int) -> str:
    return f"line l{number % STYLES}"


def _drawn(curve: Curve, axes: Axes, style: str) -> list[Markup]:
    parts = [line(curve.name, [(one.size_bytes, one.value) for one in curve.points], axes, style)]
    for one in curve.points:
        told = f"{curve.name}, {bytes_text(one.size_bytes)}: {one.value:.3g} GB/s"
        if one.low is not None and one.high is not None:
            told += f" ({one.low:.3g} - {one.high:.3g})"
            parts.append(interval(one.size_bytes, one.low, one.high, axes, style))
        parts.append(dot(told, one.size_bytes, one.value, axes, style))
    return parts
