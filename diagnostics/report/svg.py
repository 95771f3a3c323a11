"""Draws the charts of a document in the available width: horizontal positions are percentages of it, so that text keeps
its size on a phone and on paper. Colours are classes (`k0` to `k9`), so that the theme decides them.
"""

import math
from collections.abc import Sequence

from diagnostics.report.document import COLOURS, Axis, Bars, Curve, Mark, Plot, Tracks, round_values
from diagnostics.report.markup import Markup, el, join

_BAR = 17  # Height of a bar in pixels.
_TALL, _FEW = 34, 8  # Height of a bar of a timeline of at most so many ranks.
_THIN = 7  # Height of a thin stretch including the gap to what is below it, which has the height of a bar.
_TOP, _BOTTOM = 18.0, 28.0  # Space above the highest and below the lowest value of a plot, in pixels.
_SIDE = 1.0  # Percentage of the width at each side of a plot, so that the outermost points are fully visible.
_EDGE = 8.0  # Percentage of the width from a side within which a text below a plot is not centred.
_STEPS = 12.0  # Additional pixels below a plot for the names of steps, above the ticks.
_GUTTER = 6  # Pixels between a value on the left of a plot and the plot.
_LONG = 9  # Number of characters of a value from which the space on the left of a plot is wider (page.css).
_SCALE = 10.0  # Units of a stretched drawing per percent.
_LINES = 4  # Number of horizontal lines in a plot.
_FEW_DECADES = 4  # Maximum number of powers of ten for which there are also lines at 2 and 5.
_STROKES = {"solid": None, "dashed": "7 4", "dotted": "2 4", "dash-dotted": "10 3 2 3"}
_NARROW_TICKS = 3
"""Number of ticks that fit in a plot on a phone (230 pixels of 320), at 70 pixels each; the others are hidden."""


def legend(names: Sequence[str], colours: Sequence[int]) -> Markup:
    """Return the legend of colours and their names."""
    keys = [el("span", el("i", class_=f"k{n}"), name) for n, name in zip(colours, names, strict=True)]
    return el("div", *keys, class_="legend")


def bars(chart: Bars) -> Markup:
    """Return a row per bar: its name, its parts on the common scale, and the text at its end."""
    reach = [max(sum(bar.values), bar.interval[1] if bar.interval else 0.0) for bar in chart.bars]
    widest = max(reach, default=0.0) or 1.0
    colours = chart.colours or tuple(range(len(chart.parts)))
    rows = []
    for bar in chart.bars:
        start, parts = 0.0, []
        for name, colour, value, text in zip(chart.parts, colours, bar.values, bar.texts, strict=True):
            width = 100 * max(0.0, value) / widest
            hint = el("title", f"{bar.name}{f', {name}' if name else ''}: {text}")
            kind = f"k{colour if bar.colour is None else bar.colour}"
            parts.append(el("rect", hint, x=_percent(start), y=0, width=_percent(width), height=_BAR, class_=kind))
            start += width
        if bar.interval is not None:
            low, high = (100 * max(0.0, bound) / widest for bound in bar.interval)
            for a, b, top, bottom in (
                (low, high, _BAR / 2, _BAR / 2), (low, low, 3, _BAR - 3), (high, high, 3, _BAR - 3)
            ):  # fmt: skip
                line = el("line", x1=_percent(a), x2=_percent(b), y1=top, y2=bottom, class_="whisker")
                parts.append(line)
        rows.append(_row(bar.name, parts, bar.end))
    names = legend(chart.parts, colours) if len(chart.parts) > 1 else None
    return el("figure", names, *rows, class_="bars", aria_label=chart.label)


def tracks(chart: Tracks) -> Markup:
    """Return a row per track, its thin stretches above the others."""
    above = _THIN if any(stretch.thin for _, stretches, _ in chart.rows for stretch in stretches) else 0
    bar, rows = _TALL if above and len(chart.rows) <= _FEW else _BAR, []
    for name, stretches, end in chart.rows:
        parts = []
        for stretch in stretches:
            start, stop = (100 * min(max(at / chart.width, 0.0), 1.0) for at in (stretch.start, stretch.end))
            y, height = (0, _THIN - 2) if stretch.thin else (above, bar)
            across = {"x": _percent(start), "width": _percent(stop - start)}
            hint = el("title", stretch.hint)
            parts.append(el("rect", hint, y=y, height=height, class_=stretch.colour, **across))
        # Positions are percentages of this inner drawing, which the page's script widens to zoom.
        inner = el("svg", *parts, class_="scale")
        rows.append(_row(name, [inner], end, bar + above))
    keys = legend(chart.legend.names, chart.legend.colours) if chart.legend is not None else None
    if not chart.unit:
        return el("figure", keys, *rows, class_="bars tracks", aria_label=chart.label)
    names = {"in": "Zoom in", "out": "Zoom out", "all": "Show all"}
    buttons = [el("button", name, type="button", hidden=True, data_zoom=to) for to, name in names.items()]
    marks = (chart.width * n / _LINES for n in range(_LINES + 1))
    ticks = [el("span", f"{mark:{'.3g' if mark < 100 else ',.0f'}} {chart.unit}") for mark in marks]
    axis = el("div", el("span"), el("div", *ticks, class_="ticks", aria_live="polite"), el("span"), class_="row")
    zooms: dict[str, str | float] = {"data_width": chart.width, "data_unit": chart.unit, "tabindex": 0, "role": "group"}
    keys_of_zoom = "or click the timeline, then turn the wheel, drag, or press + - 0 and the arrow keys"
    tools = el("div", *buttons, el("span", keys_of_zoom, hidden=True), class_="legend tools")
    return el("figure", keys, tools, *rows, axis, class_="bars tracks zoom", aria_label=chart.label, **zooms)


def _row(name: str, parts: Sequence[Markup], end: str, height: int = _BAR) -> Markup:
    drawing = el("svg", *parts, class_="bar", height=height, aria_hidden="true")
    return el("div", el("span", name), drawing, el("span", end), class_="row")


def plot(chart: Plot) -> Markup:
    """Return the curves and areas with their axes and legend."""
    place = _Places(chart)
    levels = [(chart.y.text(value), place.y(value)) for value in _levels(chart.y)]
    parts = [el("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid") for _, y in levels]
    stretched = []
    for curve in chart.curves:
        stretched += _lines(curve, place)
    below = [_mark(mark, place) for mark in chart.marks if mark.tone != "peak"]
    height = f"{chart.height:.0f}"
    shape = {"viewBox": f"0 0 {100 * _SCALE:.0f} {height}", "width": "100%", "height": height}
    area = el("svg", *stretched, preserveAspectRatio="none", **shape)
    parts += [area, *below, *(dot for curve in chart.curves for dot in _dots(curve, place))]
    parts += [_mark(mark, place) for mark in chart.marks if mark.tone == "peak"]
    parts += [el("text", text, x=-_GUTTER, y=f"{y + 4:.1f}", text_anchor="end") for text, y in levels]
    parts += _ticks(chart.x, place)
    kind = "plot wide" if any(len(text) > _LONG for text, _ in levels) else "plot"
    drawing = el("svg", *parts, class_=kind, height=height, role="img", aria_label=chart.label)
    keys = []
    for curve in chart.curves:
        key = el("i", class_=_colour(curve))
        if not curve.lower:
            kind, dashes = f"curve {_colour(curve)}", _STROKES[curve.stroke]
            stroke = el("line", x1=0, x2=22, y1=5, y2=5, class_=kind, stroke_dasharray=dashes)
            key = el("svg", stroke, viewBox="0 0 22 10", class_="key", aria_hidden="true")
        keys.append(el("span", key, curve.name))
    return el("figure", el("div", *keys, class_="legend") if chart.legend else None, drawing)


class _Places:
    def __init__(self, chart: Plot) -> None:
        self.chart = chart
        steps = any(mark.tone == "step" for mark in chart.marks)
        self.low = chart.height - _BOTTOM - (_STEPS if steps else 0.0)
        """Distance of the lowest value from the top, in pixels."""

    def x(self, value: float) -> float:
        """Return the position as a percentage from the left."""
        return _SIDE + _share(value, self.chart.x) * (100 - 2 * _SIDE)

    def y(self, value: float) -> float:
        """Return the position in pixels from the top; values outside the axis are at its edge."""
        return self.low - _share(value, self.chart.y) * (self.low - _TOP)


def _share(value: float, axis: Axis) -> float:
    """Return the position of a value on its axis, 0 to 1 (clamped; 0.5 if the axis has a single value)."""
    value = min(max(value, axis.low), axis.high)
    if axis.low == axis.high:
        return 0.5
    if axis.log:
        return math.log(value / axis.low) / math.log(axis.high / axis.low)
    return (value - axis.low) / (axis.high - axis.low)


def _levels(axis: Axis) -> list[float]:
    """Return the ascending values with a grid line: the axis's ticks or else round values, if at least two fit."""
    if axis.ticks:
        return list(axis.ticks)
    if not axis.log:
        return round_values(axis.low, axis.high, _LINES, axis.base)
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    factors = (1,) if len(powers) > _FEW_DECADES else (1, 2, 5)
    levels = (factor * 10.0**power for power in powers for factor in factors)
    inside = [level for level in levels if axis.low <= level <= axis.high]
    return inside if len(inside) > 1 else [axis.low * (axis.high / axis.low) ** (n / _LINES) for n in range(_LINES + 1)]


def _ticks(axis: Axis, place: _Places) -> list[Markup]:
    texts = []
    for n, value in enumerate(axis.ticks):
        x = place.x(value)
        spare = "spare" if n % -(-len(axis.ticks) // _NARROW_TICKS) else None
        y = f"{place.chart.height - 8:.0f}"
        texts.append(el("text", axis.text(value), x=_percent(x), y=y, text_anchor=_anchor(x), class_=spare))
    return texts


def _anchor(x: float) -> str:
    return "start" if x < _EDGE else "end" if x > 100 - _EDGE else "middle"


def _lines(curve: Curve, place: _Places) -> list[Markup]:
    """Return the area and the line of a curve, in units that are stretched to the width."""
    points = [f"{place.x(x) * _SCALE:.1f},{place.y(y):.1f}" for x, y in curve.points]
    if curve.lower:
        edge = reversed(list(zip(curve.points, curve.lower, strict=True)))
        under = [f"{place.x(x) * _SCALE:.1f},{place.y(low):.1f}" for (x, _), low in edge]
        kind = f"band {_colour(curve)}{' faint' if curve.faint else ''}"
        return [el("polygon", el("title", curve.name), points=" ".join(points + under), class_=kind)]
    kind = f"curve {_colour(curve)}{' strong' if curve.strong else ''}"
    dashes = _STROKES[curve.stroke]
    return [el("polyline", el("title", curve.name), points=" ".join(points), class_=kind, stroke_dasharray=dashes)]


def _dots(curve: Curve, place: _Places) -> list[Markup]:
    parts = []
    for dot in curve.dots:
        across = _percent(place.x(dot.x))
        if dot.interval is not None:
            low, high = (f"{place.y(bound):.1f}" for bound in dot.interval)
            parts.append(el("line", x1=across, x2=across, y1=low, y2=high, class_=f"curve {_colour(curve)}"))
        hint = el("title", dot.hint)
        parts.append(el("circle", hint, cx=across, cy=f"{place.y(dot.y):.1f}", r=4, class_=f"dot {_colour(curve)}"))
    return parts


def _mark(mark: Mark, place: _Places) -> Markup:
    """Return a horizontal or vertical line with its text, or a point with a vertical line."""
    top, low = _TOP, place.low
    hint = el("title", mark.hint or mark.text)
    if mark.x is None:
        y = place.y(mark.y or 0.0)
        line = el("line", hint, x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_=mark.tone)
        return join(line, el("text", mark.text, x="100%", y=f"{y - 5:.1f}", text_anchor="end"))
    x = place.x(mark.x)
    at = _percent(x)
    line = el("line", hint, x1=at, x2=at, y1=f"{top:.1f}", y2=f"{low:.1f}", class_=mark.tone)
    if mark.y is None:
        text = el("text", mark.text, x=at, y=f"{low + 14:.1f}", text_anchor=_anchor(x), class_="spare")
        return join(line, text if mark.tone == "step" else None)
    is_left = x > 50
    y = place.y(mark.y)
    point = el("circle", hint, cx=at, cy=f"{y:.1f}", r=3, class_=mark.tone)
    height, anchor = f"{max(y - 6, 11.0):.1f}", "end" if is_left else "start"
    text = el("text", mark.text, x=at, dx=-8 if is_left else 8, y=height, text_anchor=anchor, class_="strong")
    return join(line, point, text)


def _colour(curve: Curve) -> str:
    return f"k{curve.colour % COLOURS}" if isinstance(curve.colour, int) else curve.colour


def _percent(value: float) -> str:
    return f"{value:.2f}%"
