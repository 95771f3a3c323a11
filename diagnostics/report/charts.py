"""Drawings of the HTML page: timeline of collectives, memory curve and categories, overlap bars.

Figures come as `diagnostics.report.measures` cut them; colours are classes, so that the theme decides them.
"""

from collections.abc import Collection, Sequence

from diagnostics.report.markup import Markup, el, join
from diagnostics.report.measures import Cell, RankMemory, RankOverlap, Timeline
from diagnostics.report.shapes import COLOURS, LEFT, RIGHT, WIDTH, colour_legend, grid_line, picture, stacked
from diagnostics.words import bytes_text, ranks_text

_DONE = frozenset({"completed", "retired", "done"})
_SEGMENTS = ("compute only", "compute and communication", "exposed communication", "idle and other")


def timeline_table(lines: Timeline, blamed: Collection[int], position: int | None) -> Markup:
    """A row per rank, a column per position; what differs from the majority is marked."""
    head = el("thead", el("tr", el("th", "rank", scope="col"), *(_column(one, position) for one in lines.positions)))
    usual = [
        _majority([_called(cells[n], at == position) for _, cells in lines.rows])
        for n, at in enumerate(lines.positions)
    ]
    rows = [
        el(
            "tr",
            el("th", str(rank), scope="row"),
            *(_cell(cell, usual[n], lines.positions[n] == position) for n, cell in enumerate(cells)),
            class_="blamed" if rank in blamed else None,
        )
        for rank, cells in lines.rows
    ]
    table = el("table", head, el("tbody", *rows), class_="timeline")
    hidden = el("p", f"{lines.hidden} more ranks are in report.json.", class_="soft") if lines.hidden else None
    legend = el(
        "p",
        "Green: completed. Yellow: issued, not completed. Grey: issued, completion not recorded. "
        "Red: not what most ranks issued. Dashed: not issued, or not recorded. * to blame.",
        class_="soft",
    )
    return join(legend, el("div", table, class_="scroll", tabindex="0"), hidden)


def memory_chart(ranks: Sequence[RankMemory], blamed: Collection[int]) -> Markup:
    """The curves of all ranks in one picture, and what the peak consists of."""
    curves = [one for one in ranks if len(one.curve) > 1]
    named = [one for one in ranks if one.categories]
    return join(_curves(curves, blamed) if curves else None, _categories(named) if named else None)


def overlap_bars(ranks: Sequence[RankOverlap], blamed: Collection[int]) -> Markup:
    """One bar per rank: where its wall time went."""
    widest = max((_wall(one) for one in ranks), default=0.0)
    bars = []
    for one in ranks:
        compute, overlapped = one.values.get("compute_ms", 0.0), one.values.get("overlapped_ms", 0.0)
        exposed = one.values.get("exposed_ms", 0.0)
        rest = _wall(one) - compute - exposed
        percent = one.values.get("overlap_percent")
        end = f"{_wall(one):.1f} ms" + ("" if percent is None else f", {percent:.0f} %")
        mark = "*" if one.rank in blamed else ""
        bars.append((f"rank {one.rank}{mark}", (compute - overlapped, overlapped, exposed, rest), end))
    units = [[f"{value:.2f} ms" for value in values] for _, values, _ in bars]
    return join(colour_legend(_SEGMENTS), stacked(bars, widest, _SEGMENTS, units, "Where the time of each rank went"))


def _column(position: int, here: int | None) -> Markup:
    return el("th", str(position), scope="col", class_="here" if position == here else None)


def _called(cell: Cell | None, here: bool) -> tuple[str, ...]:
    """What ranks are compared by; where they parted also by the line, since equal calls may fit by chance."""
    if cell is None or not cell.op:
        return ()
    return (cell.op, cell.signature, cell.where) if here else (cell.op, cell.signature)


def _majority(called: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What more than half of the ranks issued that have something there."""
    counts: dict[tuple[str, ...], int] = {}
    for one in called:
        if one:
            counts[one] = counts.get(one, 0) + 1
    best = max(counts, key=counts.__getitem__, default=())
    return best if best and counts[best] * 2 > sum(counts.values()) else ()


def _cell(cell: Cell | None, usual: tuple[str, ...], here: bool) -> Markup:
    called = _called(cell, here)
    if cell is None or not called:
        return el("td", "-", class_="absent", title="not issued, or not recorded")
    differs = called != usual
    state = "done" if cell.state in _DONE else "issued" if cell.state == "issued" else "waiting"
    about = "; ".join(part for part in (cell.op, cell.signature, cell.state, cell.where) if part)
    shown = f"{cell.op} {cell.signature}".strip() if differs or here else cell.op
    place = el("div", cell.where.partition(" in ")[0].replace("\\", "/").rpartition("/")[2]) if here else None
    return el("td", shown, place, class_="differs" if differs else state, title=about)


def _curves(ranks: Sequence[RankMemory], blamed: Collection[int]) -> Markup:
    height, bottom = 260.0, 28.0
    points = [point for one in ranks for point in one.curve]
    start, end = min(t for t, _ in points), max(t for t, _ in points)
    top = max(max(size for _, size in points), 1.0)
    across = (WIDTH - LEFT - RIGHT) / ((end - start) or 1.0)
    up = (height - bottom - 12) / top
    parts = [grid_line(bytes_text(top * n / 4), height - bottom - top * n / 4 * up) for n in range(5)]
    own = {one.rank: n for n, one in enumerate(ranks)} if len(ranks) <= COLOURS else {}
    marks = []
    for one in sorted(ranks, key=lambda rank: rank.rank in blamed):
        at = [(LEFT + (t - start) * across, height - bottom - size * up) for t, size in one.curve]
        colour = f"k{own[one.rank]}" if own else "k7"
        kind = f"curve {colour}" + (" blamed" if one.rank in blamed else "")
        dashes = "7 4" if own.get(one.rank) else None  # equal curves lie on each other: both stay visible
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(el("polyline", el("title", _peak(one)), points=line, class_=kind, stroke_dasharray=dashes))
        x, y = min(at, key=lambda point: point[1])
        marks.append(el("circle", el("title", _peak(one)), cx=f"{x:.1f}", cy=f"{y:.1f}", r="4", class_=colour))
    parts += marks
    parts.append(el("text", "0 s", x=LEFT, y=height - 8))
    parts.append(el("text", f"{end - start:.3g} s", x=WIDTH - RIGHT, y=height - 8, text_anchor="end"))
    shown = ranks_text([one.rank for one in ranks])
    drawing = picture(parts, height, f"Memory over time, {shown}")
    named = [f"rank {one.rank}{'*' if one.rank in blamed else ''}: peak {bytes_text(one.peak_bytes)}" for one in ranks]
    thick = el("p", "Thick: ranks to blame. A point marks a peak.", class_="soft")
    return join(colour_legend(named) if own else thick, drawing)


def _peak(one: RankMemory) -> str:
    """`rank 0: peak 14.8 GiB: activations 6.0 GiB, parameters 3.0 GiB`"""
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in one.categories[:6])
    return f"rank {one.rank}: peak {bytes_text(one.peak_bytes)}" + (f": {parts}" if parts else "")


def _categories(ranks: Sequence[RankMemory]) -> Markup:
    totals: dict[str, float] = {}
    for one in ranks:
        for name, size in one.categories:
            totals[name] = totals.get(name, 0.0) + size
    names = sorted(totals, key=lambda name: (-totals[name], name))
    shown = names[: COLOURS - 1]
    legend = [*shown, *(["other"] if len(names) > len(shown) else [])]
    bars = []
    for one in ranks:
        sizes = dict(one.categories)
        values = [sizes.get(name, 0.0) for name in shown]
        if len(names) > len(shown):
            values.append(sum(sizes.get(name, 0.0) for name in names[len(shown) :]))
        bars.append((f"rank {one.rank}", tuple(values), bytes_text(sum(values))))
    widest = max(sum(values) for _, values, _ in bars)
    units = [[bytes_text(value) for value in values] for _, values, _ in bars]
    drawing = stacked(bars, widest, legend, units, "What the peak of each rank consists of")
    return join(el("h3", "At the peak"), colour_legend(legend), drawing)


def _wall(one: RankOverlap) -> float:
    parts = sum(one.values.get(name, 0.0) for name in ("compute_ms", "exposed_ms", "idle_ms"))
    return max(one.values.get("wall_ms", parts), parts)
