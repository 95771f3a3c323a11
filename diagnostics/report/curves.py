"""Lines over two axes: where a point stands, which values get a line across, the legend of lines.

Knows figures and names; colours are classes of the page's style.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnostics.report.markup import Markup, el
from diagnostics.report.shapes import LEFT, RIGHT, WIDTH

BOTTOM, TOP = 30.0, 12.0
_INSET = 24.0
"""Between the frame and the outermost points, so that the text under them stays inside."""
_LINES = 4
_FEW_DECADES = 4


@dataclass(frozen=True, slots=True)
class Axes:
    """Where a point stands in a picture."""

    first: float
    last: float
    low: float
    high: float
    height: float
    """Of the picture, in its own units."""
    log_x: bool = False
    log_y: bool = False
    bottom: float = BOTTOM
    """Room under the lowest value."""

    def x(self, value: float) -> float:
        """From the left; the middle when there is only one value."""
        if self.last == self.first:
            return (LEFT + WIDTH - RIGHT) / 2
        return LEFT + _INSET + _part(value, self.first, self.last, self.log_x) * (WIDTH - LEFT - RIGHT - 2 * _INSET)

    def y(self, value: float) -> float:
        """From the top; what lies outside stands at the edge."""
        inside = min(max(value, self.low), self.high)
        room = self.height - self.bottom - TOP
        return self.height - self.bottom - _part(inside, self.low, self.high, self.log_y) * room

    def marks(self) -> list[float]:
        """Values with a line across, ascending: round ones on a logarithmic axis, where two of them fit."""
        steps = range(_LINES + 1)
        if not self.log_y:
            return [self.low + (self.high - self.low) * n / _LINES for n in steps]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1,) if len(powers) > _FEW_DECADES else (1, 2, 5)
        marks = (factor * 10.0**power for power in powers for factor in factors)
        inside = [mark for mark in marks if self.low <= mark <= self.high]
        return inside if len(inside) > 1 else [self.low * (self.high / self.low) ** (n / _LINES) for n in steps]


def line(name: str, points: Iterable[tuple[float, float]], axes: Axes, style: str, dashes: str | None = None) -> Markup:
    """The points joined, in their order.

    Args:
        name: what a pointer over it shows.
        points: values, not places.
        axes: of the picture.
        style: classes of the line.
        dashes: lengths, as SVG takes them.
    """
    places = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    return el("polyline", el("title", name), points=places, class_=style, stroke_dasharray=dashes)


def band(name: str, edges: Sequence[tuple[float, float, float]], axes: Axes, style: str) -> Markup:
    """What lies between two lines.

    Args:
        name: what a pointer over it shows.
        edges: x, lower and upper value, in their order.
        axes: of the picture.
        style: classes of the area.
    """
    over = [f"{axes.x(x):.1f},{axes.y(high):.1f}" for x, _, high in edges]
    under = [f"{axes.x(x):.1f},{axes.y(low):.1f}" for x, low, _ in reversed(edges)]
    return el("polygon", el("title", name), points=" ".join(over + under), class_=style)


def upright(told: str, x: float, axes: Axes, style: str) -> Markup:
    """A line from the bottom to the top."""
    at, low = f"{axes.x(x):.1f}", f"{axes.height - axes.bottom:.1f}"
    return el("line", el("title", told), x1=at, x2=at, y1=f"{TOP:.1f}", y2=low, class_=style)


def dot(told: str, x: float, y: float, axes: Axes, style: str) -> Markup:
    """One point; `told` is what a pointer over it shows."""
    return el("circle", el("title", told), cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=3, class_=style)


def interval(x: float, low: float, high: float, axes: Axes, style: str) -> Markup:
    """A line upright at `x`."""
    place = f"{axes.x(x):.1f}"
    return el("line", x1=place, x2=place, y1=f"{axes.y(low):.1f}", y2=f"{axes.y(high):.1f}", class_=style)


def tick(text: str, x: float, axes: Axes, up: float = 0.0) -> Markup:
    """What is written under the picture at `x`, `up` above the lowest line."""
    return el("text", text, x=f"{axes.x(x):.1f}", y=axes.height - 8 - up, text_anchor="middle")


def line_legend(lines: Sequence[tuple[str, str, str | None]]) -> Markup:
    """A short piece of each line and its name.

    Args:
        lines: name, style and dashes of each.
    """
    return el("div", *(_key(*one) for one in lines), class_="legend")


def _key(name: str, style: str, dashes: str | None) -> Markup:
    piece = el("line", x1=0, x2=22, y1=5, y2=5, class_=style, stroke_dasharray=dashes)
    return el("span", el("svg", piece, viewBox="0 0 22 10", class_="key", aria_hidden="true"), name)


def _part(value: float, start: float, end: float, logarithmic: bool) -> float:
    """How far between two others, 0 to 1."""
    if logarithmic:
        return math.log(value / start) / math.log(end / start)
    return (value - start) / (end - start)
