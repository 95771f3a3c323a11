"""What drawings of a page are made of: the picture, stacked bars, grid lines, the legend. Knows no report.

Colours are classes (`k0` to `k8`), so that the theme decides them.
"""

from collections.abc import Sequence

from diagnostics.report.markup import Markup, el, join

WIDTH = 900.0
LEFT = 64.0
RIGHT = 96.0
COLOURS = 9
_ROW = 24.0
_LETTER = 7.0
"""Room for a letter or figure of the page's font, in the units of the drawing; most are narrower."""


def stacked(
    bars: Sequence[tuple[str, tuple[float, ...], str]],
    widest: float,
    names: Sequence[str],
    units: Sequence[Sequence[str]],
    label: str,
    left: float = LEFT,
    colours: Sequence[int] | None = None,
) -> Markup:
    """Horizontal stacked bars; the value of each part is its tooltip, and the longest leaves room for its text.

    Args:
        bars: name, values of its parts, text at its end.
        widest: sum of values that fills the width.
        names: of the parts.
        units: the values of each bar as text.
        label: what the picture shows.
        left: room for the names of the bars.
        colours: number of each part's colour; else their order.
    """
    right = max(RIGHT, 12 + _LETTER * max((len(end) for _, _, end in bars), default=0))
    scale = (WIDTH - left - right) / widest if widest > 0 else 0.0
    parts = []
    for row, (name, values, end) in enumerate(bars):
        y, x = row * _ROW + 4, left
        parts.append(el("text", name, x=left - 6, y=y + 13, text_anchor="end"))
        for n, value in enumerate(values):
            width = max(0.0, value) * scale
            told = el("title", f"{name}, {names[n]}: {units[row][n]}")
            parts.append(
                el(
                    "rect",
                    told,
                    x=f"{x:.2f}",
                    y=y,
                    width=f"{width:.2f}",
                    height=_ROW - 7,
                    class_=f"k{colours[n] if colours else n}",
                )
            )
            x += width
        parts.append(el("text", end, x=f"{min(x, WIDTH - right) + 6:.1f}", y=y + 13))
    return picture(parts, len(bars) * _ROW + 4, label)


def picture(parts: Sequence[Markup], height: float, label: str) -> Markup:
    """The picture; where the page is narrow it scrolls inside its frame."""
    drawn = el("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=label)
    return el("div", drawn, class_="scroll")


def grid_line(text: str, y: float) -> Markup:
    """A horizontal line with its value at the left."""
    line = el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
    return join(line, el("text", text, x=LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))


def colour_legend(names: Sequence[str], colours: Sequence[int] | None = None) -> Markup:
    """The names of the colours: of `colours` by number, else in their order."""
    numbers = range(len(names)) if colours is None else colours
    keys = [el("span", el("i", class_=f"k{n}"), name) for n, name in zip(numbers, names, strict=True)]
    return el("div", *keys, class_="legend")
