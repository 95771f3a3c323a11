"""Drawings of the page: bars with intervals, loss curves over each other, where a step goes, the scaling curve.

Knows figures and names; colours are classes of the page's style. Nothing here is read as markup.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnostics.contract.formatting import seconds_text
from diagnostics.report.curves import Axes, dot, line, line_legend, tick
from diagnostics.report.markup import Markup, el, join
from diagnostics.report.shapes import COLOURS, WIDTH, colour_legend, grid_line, picture, stacked
from dtk.compare.model import Cell, Comparison, Figure, Scaled
from dtk.compare.words import interval_text, number_text, times_text, value_text

_ROW, _BAR = 30.0, 18.0
_NAMES, _ENDS = 240.0, 190.0
"""Room for the names of variants in front of bars and for the figures behind them."""
_NAME_CHARACTERS = 28
_HEIGHT = 300.0
POINTS_DRAWN = 400
_DASHES = (None, "7 4", "2 4", "10 3 2 3")
_PARTS = ("compute only", "compute and communication", "exposed communication", "copies", "idle and other")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture."""

    name: str
    points: tuple[Point, ...]
    style: str
    """Class of the line."""
    dashes: str | None = None


def bars(figure: Figure, colours: Sequence[str]) -> Markup:
    """One bar a variant, the interval as a line across its end."""
    cells = [cell for cell in figure.cells if cell.estimate is not None]
    widest = max((_reach(cell) for cell in cells), default=0.0)
    scale = (WIDTH - _NAMES - _ENDS) / widest if widest > 0 else 0.0
    parts: list[Markup] = []
    for row, cell in enumerate(cells):
        found = cell.estimate
        assert found is not None
        y = row * _ROW + 6
        told = value_text(found.median, figure.unit)
        name = el("title", f"{cell.variant}: {told} {interval_text(found, figure.unit)}".rstrip())
        middle = y + _BAR / 2
        parts.append(el("text", _short(cell.variant), x=_NAMES - 8, y=y + 13, text_anchor="end"))
        kind = f"k{colours.index(cell.variant) % COLOURS}" if cell.variant in colours else "k7"
        parts.append(el("rect", name, x=_NAMES, y=y, width=f"{found.median * scale:.2f}", height=_BAR, class_=kind))
        if found.low is not None and found.high is not None:
            parts += _whisker(_NAMES + found.low * scale, _NAMES + min(found.high, _reach(cell)) * scale, middle)
        end = told if cell.ratio is None else f"{told} ({times_text(cell.ratio.median)})"
        parts.append(el("text", end, x=f"{_NAMES + _reach(cell) * scale + 8:.1f}", y=y + 13))
    return picture(parts, len(cells) * _ROW + 6, figure.title)


def losses(found: Comparison, colours: Sequence[str]) -> Markup | None:
    """Training loss over steps, one line a variant; equal ones are dashed so that all stay visible."""
    curves = []
    for variant in found.compared:
        points = [(float(one.last), one.loss) for one in variant.any.windows if one.loss is not None]
        if len(points) > 1:
            n = colours.index(variant.label)
            style = f"curve k{n % COLOURS}"
            curves.append(Curve(variant.label, _thinned(points), style, _DASHES[n % len(_DASHES)]))
    if not curves:
        return None
    return _lines(curves, _loss_text, "Training loss over steps", "step")


def breakdown(found: Comparison) -> Markup | None:
    """Where a step of the profiled window goes, of the variants that recorded it."""
    rows: list[tuple[str, tuple[float, ...], str]] = []
    for variant in found.compared:
        parts = [run.breakdown for run in variant.compared if run.breakdown is not None]
        if not parts:
            continue
        mean = [sum(getattr(one, key) for one in parts) / len(parts) for key in _KEYS]
        wall, compute, overlapped, exposed, copies = mean
        rest = max(0.0, wall - compute - exposed - copies)
        values = (max(0.0, compute - overlapped), overlapped, exposed, copies, rest)
        rows.append((_short(variant.label), values, seconds_text(wall / 1e3)))
    if not rows:
        return None
    widest = max(sum(values) for _, values, _ in rows)
    units = [[seconds_text(value / 1e3) for value in values] for _, values, _ in rows]
    drawing = stacked(rows, widest, _PARTS, units, "Where a step goes", left=_NAMES)
    return join(colour_legend(_PARTS), drawing)


def scaling(points: Sequence[Scaled]) -> Markup | None:
    """Tokens/s over numbers of ranks beside what perfect scaling would give, on logarithmic axes."""
    series: dict[tuple[str, str], list[Scaled]] = {}
    for one in points:
        series.setdefault((one.series, one.kind), []).append(one)
    curves = []
    for n, ((name, kind), members) in enumerate(series.items()):
        measured = tuple((float(one.world_size), one.tokens_per_s) for one in members)
        first, speed = measured[0]
        ideal = tuple((size, speed * size / first) for size, _ in measured)
        curves += [
            Curve(f"{name}, {kind} scaling", measured, f"curve k{n % COLOURS}"),
            Curve(f"{name}, perfect", ideal, "line ideal"),
        ]
    if not curves:
        return None
    return _lines(curves, number_text, "Tokens per second over numbers of ranks", "ranks", logarithmic=True)


_KEYS = ("wall_ms", "compute_ms", "overlapped_ms", "exposed_ms", "memory_ms")


def _lines(
    curves: Sequence[Curve], text: Callable[[float], str], label: str, across: str, logarithmic: bool = False
) -> Markup:
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    axes = Axes(min(xs), max(xs), *_room(min(ys), max(ys), logarithmic), _HEIGHT, log_x=logarithmic, log_y=logarithmic)
    parts = [grid_line(text(value), axes.y(value)) for value in axes.marks()]
    for curve in curves:
        parts.append(line(curve.name, curve.points, axes, curve.style, curve.dashes))
        if logarithmic:
            parts += [dot(f"{curve.name}, {x:,.0f}: {text(y)}", x, y, axes, curve.style) for x, y in curve.points]
    ticks = sorted(set(xs)) if logarithmic else [min(xs), max(xs)]
    parts += [tick(f"{across} {x:,.0f}", x, axes) for x in ticks]
    names = line_legend([(curve.name, curve.style, curve.dashes) for curve in curves])
    return join(names, picture(parts, _HEIGHT, label))


def _whisker(start: float, end: float, y: float) -> list[Markup]:
    lines = ((start, end, y, y), (start, start, y - 5, y + 5), (end, end, y - 5, y + 5))
    return [
        el("line", x1=f"{a:.1f}", x2=f"{b:.1f}", y1=f"{c:.1f}", y2=f"{d:.1f}", class_="whisker") for a, b, c, d in lines
    ]


def _reach(cell: Cell) -> float:
    """How far a bar with its interval goes; an interval as wide as the figure itself is cut there."""
    found = cell.estimate
    if found is None:
        return 0.0
    return found.median if found.high is None else max(found.median, min(found.high, 2 * found.median))


def _loss_text(value: float) -> str:
    return f"{value:.3g}"


def _short(name: str) -> str:
    """The end stays: it often is what tells one variant from another."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    kept = (_NAME_CHARACTERS - 3) // 2
    return f"{name[: _NAME_CHARACTERS - 3 - kept]}...{name[-kept:]}"


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most about `POINTS_DRAWN` of them, the last one among them."""
    step = -(-len(points) // POINTS_DRAWN)
    kept = list(points[::step])
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def _room(low: float, high: float, logarithmic: bool) -> tuple[float, float]:
    """Axis around the values."""
    if logarithmic:
        return max(low, 1e-9) / 1.3, max(high, 1e-9) * 1.3
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin
