"""Memory on the HTML page: what it consisted of over time, the curves of all ranks, what their peaks consist of.

Colours are classes, the same for a kind wherever it is drawn; the theme decides them.
"""

from collections.abc import Collection, Sequence

from diagnostics.contract.formatting import bytes_text, ranks_text, seconds_text
from diagnostics.report.curves import Axes, line
from diagnostics.report.markup import Markup, el, join
from diagnostics.report.measures import RankMemory
from diagnostics.report.memory_area import NOBODY, area_chart, colours_of, round_above
from diagnostics.report.shapes import COLOURS, colour_legend, grid_line, picture, stacked

_HEIGHT = 260.0


def memory_chart(ranks: Sequence[RankMemory], blamed: Collection[int]) -> Markup:
    """The highest peak over time first; then all ranks beside each other."""
    layered = sorted((one for one in ranks if one.stack is not None), key=lambda one: (-one.peak_bytes, one.rank))
    curves = [one for one in ranks if len(one.curve) > 1]
    named = [one for one in ranks if any(name != NOBODY for name, _ in one.at_peak)]
    alone = len(ranks) == 1 and bool(layered)
    return join(
        _over_time(layered, blamed) if layered else None,
        _curves(curves, blamed, bool(layered)) if curves and not alone else None,
        _categories(named) if named else None,
    )


def _over_time(ranks: Sequence[RankMemory], blamed: Collection[int]) -> Markup:
    """The first one open, the others to be opened."""
    names = list(dict.fromkeys(name for one in ranks if one.stack for name in one.stack.kinds))
    parts = [
        el(
            "details",
            el(
                "summary",
                f"rank {one.rank}{'*' if one.rank in blamed else ''}: peak {bytes_text(one.stack.peak_bytes)}",
            ),
            area_chart(one.rank, one.stack),
            open=n == 0,
        )
        for n, one in enumerate(ranks)
        if one.stack is not None
    ]
    return join(el("h3", "Over time"), colour_legend(names, colours_of(names)), el("div", *parts, class_="ranks"))


def _curves(ranks: Sequence[RankMemory], blamed: Collection[int], titled: bool) -> Markup:
    points = [point for one in ranks for point in one.curve]
    start, end = min(t for t, _ in points), max(t for t, _ in points)
    axes = Axes(start, end, 0.0, round_above(max(size for _, size in points)), _HEIGHT)
    parts = [grid_line(bytes_text(mark), axes.y(mark)) for mark in axes.marks()]
    own = {one.rank: n for n, one in enumerate(ranks)} if len(ranks) <= COLOURS else {}
    marks = []
    for one in sorted(ranks, key=lambda rank: rank.rank in blamed):
        colour = f"k{own[one.rank]}" if own else "k7"
        kind = f"curve {colour}" + (" blamed" if one.rank in blamed else "")
        dashes = "7 4" if own.get(one.rank) else None  # equal curves lie on each other: both stay visible
        parts.append(line(_peak(one), one.curve, axes, kind, dashes))
        at, size = max(one.curve, key=lambda point: point[1])
        place = {"cx": f"{axes.x(at):.1f}", "cy": f"{axes.y(size):.1f}"}
        marks.append(el("circle", el("title", _peak(one)), r="4", class_=colour, **place))
    parts += marks
    for time, anchor in ((start, "start"), (end, "end")):
        told = seconds_text(time - start)
        parts.append(el("text", told, x=f"{axes.x(time):.1f}", y=_HEIGHT - 8, text_anchor=anchor))
    drawing = picture(parts, _HEIGHT, f"Memory over time, {ranks_text([one.rank for one in ranks])}")
    named = [f"rank {one.rank}{'*' if one.rank in blamed else ''}: peak {bytes_text(one.peak_bytes)}" for one in ranks]
    thick = el("p", "Thick: ranks to blame. A point marks a peak.", class_="soft")
    title = el("h3", "All ranks") if titled else None
    return join(title, colour_legend(named) if own else thick, drawing)


def _peak(one: RankMemory) -> str:
    """`rank 0: peak 14.8 GiB: activations 6.0 GiB, parameters 3.0 GiB`"""
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in one.at_peak[:6])
    return f"rank {one.rank}: peak {bytes_text(one.peak_bytes)}" + (f": {parts}" if parts else "")


def _categories(ranks: Sequence[RankMemory]) -> Markup:
    kinds = [_by_kind(one) for one in ranks]
    totals: dict[str, float] = {}
    for sizes in kinds:
        for name, size in sizes.items():
            totals[name] = totals.get(name, 0.0) + size
    names = sorted(totals, key=lambda name: (-totals[name], name))
    shown = names if len(names) <= COLOURS else names[: COLOURS - 1]
    legend = [*shown, *(["other"] if len(names) > len(shown) else [])]
    bars = []
    for one, sizes in zip(ranks, kinds, strict=True):
        values = [sizes.get(name, 0.0) for name in shown]
        if len(names) > len(shown):
            values.append(sum(sizes.get(name, 0.0) for name in names[len(shown) :]))
        bars.append((f"rank {one.rank}", tuple(values), bytes_text(sum(values))))
    widest = max(sum(values) for _, values, _ in bars)
    units = [[bytes_text(value) for value in values] for _, values, _ in bars]
    colours = colours_of(legend)
    told = "What the peak of each rank consists of"
    drawing = stacked(bars, widest, legend, units, told, colours=colours)
    return join(el("h3", "At the peak"), colour_legend(legend, colours), drawing)


def _by_kind(one: RankMemory) -> dict[str, float]:
    """What is drawn in the same colour over time counts together."""
    found: dict[str, float] = {}
    for name, size in one.at_peak:
        kind = one.kind_of.get(name, name)
        found[kind] = found.get(kind, 0.0) + size
    return found
