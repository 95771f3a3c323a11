"""Drawings of the HTML page: timeline of collectives, overlap bars. Memory: `memory_chart`.

Figures come as `diagnostics.report.measures` cut them; colours are classes, so that the theme decides them.
"""

from collections.abc import Collection, Sequence

from diagnostics.report.markup import Markup, el, join
from diagnostics.report.measures import Cell, RankOverlap, Timeline
from diagnostics.report.shapes import colour_legend, stacked

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


def _wall(one: RankOverlap) -> float:
    parts = sum(one.values.get(name, 0.0) for name in ("compute_ms", "exposed_ms", "idle_ms"))
    return max(one.values.get("wall_ms", parts), parts)
