"""The stacked areas of one rank's memory over time: a picture, what it says in words, and its figures as a table."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, floor, log

from diagnostics.contract.formatting import bytes_text
from diagnostics.report.curves import Axes, band, dot, line, tick, upright
from diagnostics.report.markup import Markup, el, join
from diagnostics.report.memory_areas import MemoryStack, share_text
from diagnostics.report.shapes import COLOURS, LEFT, RIGHT, WIDTH, grid_line, picture

HEIGHT, BOTTOM = 300.0, 44.0
NOBODY = "not attributed"
_FIXED = {
    "parameters": 0,
    "gradients": 1,
    "optimizer states": 2,
    "communication buffers": 5,
    "activations": 4,
    "temporaries": 6,
    "kept from earlier steps": 8,
    NOBODY: 3,
    "reserved, in no tensor": 7,
}
_ROUND = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LINES = 4
_MOMENTS = 9
_STEP_ROOM = 60.0
_TICKS = 5
_LEAST = 1e-9
_FAR = 1.6
"""A capacity that is so many times above all else is told, not drawn."""


def colours_of(names: Sequence[str]) -> list[int]:
    """The number of each name's colour: the same wherever it is drawn; others take what is left."""
    taken = {_FIXED[name] for name in names if name in _FIXED}
    free = iter([n for n in range(COLOURS) if n not in taken])
    return [_FIXED[name] if name in _FIXED else next(free, COLOURS - 1) for name in names]


def area_chart(rank: int, stack: MemoryStack) -> Markup:
    """The picture of one rank with its words and its figures."""
    notes = [el("p", f"{note[:1].upper()}{note[1:]}.", class_="soft") for note in stack.notes]
    return join(el("p", _told(stack)), _picture(rank, stack), *notes, _table(rank, stack))


def _told(stack: MemoryStack) -> str:
    """`Peak of tensors: 14.8 GiB at 1.24 s, in step 3, backward, at train.py:88 in loss_of: activations (62 %), ...`"""
    place = f", {'' if stack.place.startswith('at ') else 'in '}{stack.place}" if stack.place else ""
    parts = ", ".join(f"{name}{share_text(size, stack.peak_bytes)}" for name, size in stack.at_peak)
    text = f"Peak of {stack.of}: {bytes_text(stack.peak_bytes)} at {stack.time_text(stack.peak_time)}{place}"
    text += f": {parts}." if parts else "."
    if stack.failed is not None:
        text += f" A request of {bytes_text(stack.failed[1])} failed at {stack.time_text(stack.failed[0])}."
    if stack.capacity_bytes is not None:
        text += f" The device has {bytes_text(stack.capacity_bytes)}."
    return text


def _picture(rank: int, stack: MemoryStack) -> Markup:
    most = max(sum(sizes) for _, sizes in stack.rows)
    capacity = stack.capacity_bytes if stack.capacity_bytes and stack.capacity_bytes <= _FAR * most else None
    axes = Axes(
        stack.rows[0][0], stack.rows[-1][0], 0.0, round_above(max(most, capacity or 0.0)), HEIGHT, bottom=BOTTOM
    )
    parts = [grid_line(bytes_text(mark), axes.y(mark)) for mark in axes.marks()]
    parts += _bands(stack, axes)
    parts += _below(stack, axes)
    if capacity is not None:
        told = f"the device has {bytes_text(capacity)}"
        ends = [(axes.first, capacity), (axes.last, capacity)]
        parts.append(line(told, ends, axes, "limit"))
        parts.append(el("text", told, x=WIDTH - RIGHT, y=f"{axes.y(capacity) - 5:.1f}", text_anchor="end"))
    if stack.failed is not None:
        told = f"a request of {bytes_text(stack.failed[1])} failed"
        parts.append(upright(told, min(max(stack.failed[0], axes.first), axes.last), axes, "limit"))
    parts += _peak_mark(stack, axes)
    return picture(parts, HEIGHT, f"Memory of rank {rank} over time. {_told(stack)}")


def _bands(stack: MemoryStack, axes: Axes) -> list[Markup]:
    """From the bottom to the top; a line over what is in tensors."""
    sums = [(time, (0.0, *accumulate(sizes))) for time, sizes in stack.rows]
    shares = dict(stack.at_peak)
    parts = []
    for n, (name, colour) in enumerate(zip(stack.kinds, colours_of(stack.kinds), strict=True)):
        size = shares.get(name, 0.0)
        told = f"{name}: {bytes_text(size)}{share_text(size, stack.peak_bytes)} at the peak"
        told = (
            f"{name}: at most {bytes_text(max(sizes[n] for _, sizes in stack.rows))}" if name in stack.unused else told
        )
        edges = [(time, edge[n], edge[n + 1]) for time, edge in sums]
        parts.append(band(told, edges, axes, f"band k{colour}" + (" unused" if name in stack.unused else "")))
    used = [n for n, name in enumerate(stack.kinds) if name not in stack.unused]
    totals = [(time, sum(sizes[n] for n in used)) for time, sizes in stack.rows]
    parts.append(line(stack.of, totals, axes, "total"))
    return parts


def _below(stack: MemoryStack, axes: Axes) -> list[Markup]:
    """Times under the picture, and above them where steps begin, as many as there is room for."""
    parts = []
    apart = _round((axes.last - axes.first) / _TICKS)
    for n in range(ceil(axes.first / apart), floor(axes.last / apart) + 1):
        parts.append(tick(stack.time_text(n * apart), n * apart, axes))
    reached = -_STEP_ROOM
    for time, step in stack.steps:
        if axes.first <= time <= axes.last and axes.x(time) - reached >= _STEP_ROOM:
            reached = axes.x(time)
            parts.append(upright(f"step {step} begins", time, axes, "begin"))
            parts.append(tick(f"step {step}", time, axes, up=16.0))
    return parts


def _peak_mark(stack: MemoryStack, axes: Axes) -> list[Markup]:
    told = f"peak {bytes_text(stack.peak_bytes)}"
    x = axes.x(stack.peak_time)
    left = x > (LEFT + WIDTH - RIGHT) / 2
    words = el(
        "text",
        told,
        x=f"{x - 8 if left else x + 8:.1f}",
        y=f"{max(axes.y(stack.peak_bytes) - 6, 11.0):.1f}",
        text_anchor="end" if left else "start",
        class_="told",
    )
    full = f"{told}{', ' if stack.place else ''}{stack.place}"
    return [
        upright(full, stack.peak_time, axes, "mark"),
        dot(full, stack.peak_time, stack.peak_bytes, axes, "at"),
        words,
    ]


def _table(rank: int, stack: MemoryStack) -> Markup:
    """Some moments, the peak among them, as text."""
    width = max(1, len(stack.rows) // _MOMENTS)
    peak = min(range(len(stack.rows)), key=lambda n: abs(stack.rows[n][0] - stack.peak_time))
    chosen = sorted({*range(0, len(stack.rows), width), len(stack.rows) - 1, peak})
    used = [n for n, name in enumerate(stack.kinds) if name not in stack.unused]
    names = ("moment", "together", *stack.kinds)
    heads = [el("th", name, scope="col", class_="number" if n else None) for n, name in enumerate(names)]
    rows = []
    for n in chosen:
        time, sizes = stack.rows[n]
        told = stack.time_text(time) + (" (peak)" if n == peak else "")
        cells = [bytes_text(size) if size else "0" for size in (sum(sizes[at] for at in used), *sizes)]
        rows.append(el("tr", el("th", told, scope="row"), *(el("td", cell, class_="number") for cell in cells)))
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="moments")
    source = el("p", "From ", el("code", stack.source), ".", class_="soft") if stack.source else None
    return el(
        "details", el("summary", f"Figures of rank {rank}"), el("div", table, class_="scroll", tabindex="0"), source
    )


def round_above(value: float) -> float:
    """The least height above `value` whose quarters are round in bytes, KiB, MiB, ...

    Args:
        value: bytes, more than 0.
    """
    unit = 1024.0 ** max(0, floor(log(max(value, 1.0), 1024)))
    return _round(value / unit / _LINES) * _LINES * unit


def _round(value: float) -> float:
    """The least round number that is not below."""
    value = max(value, _LEAST)
    power = 10.0 ** floor(log(value, 10))
    return power * next(one for one in _ROUND if one * power >= value * (1 - 1e-9) or one == _ROUND[-1])
