"""Drawings of the page: what the peak consists of, and memory and throughput over numbers of ranks.

Knows figures and names; colours are classes of the page's style.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnostics.report.curves import Axes, dot, line, line_legend, tick
from diagnostics.report.markup import Markup, el, join
from diagnostics.report.shapes import LEFT, RIGHT, WIDTH, colour_legend, grid_line, picture, stacked
from dtk.plan.formatting import bytes_text, count_text
from dtk.plan.prediction import Category, Prediction

_HEIGHT = 260.0
_NAMES = 225.0
"""Room for the names of strategies in front of bars."""
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
    axes = Axes(ranks[0], ranks[-1], low, top, _HEIGHT, log_x=True, log_y=logarithmic)
    parts = [grid_line(text(value), axes.y(value)) for value in axes.marks()]
    parts += [_limit(name, axes.y(value)) for name, value in limits]
    for curve in curves:
        style = f"line {curve.style}"
        parts.append(line(curve.name, curve.points, axes, style))
        parts += [dot(f"{curve.name}, {n:,} ranks: {text(value)}", n, value, axes, style) for n, value in curve.points]
    parts += [tick(f"{n:,}", n, axes) for n in ranks]
    names = line_legend([(curve.name, f"line {curve.style}", None) for curve in curves]) if len(curves) > 1 else None
    return join(names, picture(parts, _HEIGHT, label))


def _limit(name: str, y: float) -> Markup:
    across = el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="limit")
    return join(across, el("text", name, x=WIDTH - RIGHT, y=f"{y - 5:.1f}", text_anchor="end"))
