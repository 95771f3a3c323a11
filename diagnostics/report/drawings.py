"""Charts of what detectors measured: each rank's last collectives, memory over time, the breakdown of a step."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby

from diagnostics.analysis.memory.over_time import MemoryStack
from diagnostics.analysis.vote import count_votes
from diagnostics.causes.registry import traits
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import bytes_text, numbers_text, seconds_text
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.memory import levels as kinds
from diagnostics.report import document as doc, measures
from diagnostics.report.measures import Call, RankMemory, memory_notes, of_what, peak_place, share_text
from diagnostics.report.model import Report
from diagnostics.report.wording import texts_beside

_TABLE, _said = table_beside(__file__), texts_beside(__file__)
_DONE = frozenset({"completed", "retired", "done"})
_SEGMENTS = ("compute only", "compute and communication", "exposed communication", "idle and other")
_REGIONS = {"forward": "k0", "backward": "k1", "after backward": "k4"}
_CELLS = 32  # Ranks in a row of the heat map: four nodes of eight.
_LEVELS = 6  # Colours of the heat map.
_SAME = 0.02  # Chosen: if the shares of all ranks differ by less, all cells have the colour of the lowest.
_COLOURED = (
    kinds.PARAMETERS, kinds.GRADIENTS, kinds.OPTIMIZER, kinds.UNKNOWN, kinds.ACTIVATIONS, kinds.BUFFERS,
    kinds.TEMPORARIES, kinds.RESERVED, kinds.KEPT, kinds.SAVED,
)  # fmt: skip
_KIND_COLOURS = {kind: n for n, kind in enumerate(_COLOURED)}
_NAMED_SHARE = 0.005  # Chosen: smaller parts of a peak would be shown as 0% or 1%.
_MOMENTS = 9  # Number of moments of memory over time that are listed as figures.
_TICKS = 5  # Number of ticks on a time axis.
_STEPS = 12  # Maximum number of step starts that are marked.
_FAR = 1.6
"""Chosen: a capacity above this multiple of the highest value is only written: drawing it would flatten the curves."""
_ABOVE = 1.04  # Height of a plot of memory, as a factor of the highest value.


def timeline(report: Report) -> doc.Only | None:
    """Return a row for each distinct history and a column for each position; calls unlike the majority's are marked."""
    position = next((root.position for root in report.root_causes if root.position is not None), None)
    culprits = _culprits(report, "calls")
    lines = measures.timeline(report.measures)
    if lines is None:
        return None
    cells = {rank: {call.position: call for call in calls} for rank, calls in sorted(lines.ranks.items())}
    positions = sorted({at for calls in cells.values() for at in calls})
    majority: dict[int, tuple[str, ...]] = {}  # The call of more than half of the ranks that issued any; else ().
    for at in positions:
        issued = {rank: _compared(calls.get(at), at == position) for rank, calls in cells.items()}
        vote = count_votes(GroupKey("", lines.group, ""), at, {rank: call for rank, call in issued.items() if call})
        majority[at] = issued[vote.sides[0][0]] if vote.has_majority else ()
    by_row: dict[tuple[doc.Cell, ...], list[int]] = {}
    for rank, calls in cells.items():
        row = (
            doc.Cell(" *" if rank in culprits else ""),
            *(_call(calls.get(at), majority[at], at == position) for at in positions),
        )
        by_row.setdefault(row, []).append(rank)
    rows = [(doc.Cell(f"{numbers_text(ranks)}{marked.text}"), *calls) for (marked, *calls), ranks in by_row.items()]
    focus = positions.index(position) + 1 if position in positions else None
    header = ("ranks", *map(str, positions))
    world = report.world_size or 0
    legend = _said("calls") + (_said("some_calls", drawn=len(cells), world=world) if len(cells) < world else "")
    blocks = (doc.remark(legend), doc.Table(header, tuple(rows), len(header), "dense", focus))
    title = _said("calls_of_group" if lines.group else "calls_title", group=lines.group)
    return doc.on_page(doc.Section(title, blocks))


def _compared(call: Call | None, at_divergence: bool) -> tuple[str, ...]:
    """Return what ranks are compared by; at the divergence with the line, as calls of two lines may be equal."""
    if call is None or not call.op:
        return ()
    return (call.op, call.signature, call.where) if at_divergence else (call.op, call.signature)


def _call(call: Call | None, majority: tuple[str, ...], at_divergence: bool) -> doc.Cell:
    compared = _compared(call, at_divergence)
    if call is None or not compared:
        return doc.Cell("-", "soft", hint=_said("no_call"))
    differs = compared != majority
    tone = "bad" if differs else "good" if call.state in _DONE else "" if call.state == "issued" else "warn"
    hint = "; ".join(part for part in (call.op, call.signature, call.state, call.where) if part)
    text = f"{call.op} {call.signature}".strip() if differs or at_divergence else call.op
    return doc.Cell(text, tone, (call.place or call.where,) if at_divergence else (), hint)  # type: ignore[arg-type]


def overlap(report: Report) -> doc.Section | None:
    """Return a bar per rank that divides its wall time."""
    culprits, shares = _culprits(report, "times"), measures.lost_shares(report.measures)
    worst = sorted(shares, key=lambda rank: -shares[rank][0])
    ranks = measures.overlap(report.measures, (*culprits, *worst))
    if not ranks:
        return None
    bars = []
    for rank, record in ranks.items():
        compute, overlapped, exposed = record.compute_ms or 0.0, record.overlapped_ms or 0.0, record.exposed_ms or 0.0
        parts = compute + exposed + (record.idle_ms or 0.0)
        wall = parts if record.wall_ms is None else max(record.wall_ms, parts)
        values = (compute - overlapped, overlapped, exposed, wall - compute - exposed)
        end = f"{wall:.1f} ms" + ("" if record.overlap_percent is None else f", {record.overlap_percent:.0f}%")
        name = f"rank {rank}{'*' if rank in culprits else ''}"
        bars.append(doc.Bar(name, values, tuple(f"{value:.2f} ms" for value in values), end))
    step = measures.step_timeline(report.measures)
    window = measures.overlap_window(report.measures)
    note = _said("bars") + (_said("some_bars", drawn=len(ranks)) if len(ranks) < len(shares) else "")
    return doc.Section(
        "Overlap",
        doc.present(
            doc.remark(_said("window", window=window)) if window else None,
            _step(step, culprits) if step is not None else None,
            _heat(shares) if len(shares) > _CELLS else None,
            doc.on_page(doc.remark(note)),
            doc.Bars(_said("bars_title"), tuple(bars), _SEGMENTS),
            doc.Fold("Figures", (doc.table(measures.overlap_rows(ranks)),)),
        ),
    )


def _step(timeline: measures.StepTimeline, culprits: Collection[int]) -> doc.Only:
    """Return a track per rank: its regions, and below them its collectives and what it waited for."""
    rows = []
    for rank, track in timeline.ranks.items():
        stretches = [
            doc.Stretch(start, end, _REGIONS.get(name, "k7"), f"{name}: {end - start:.2f} ms", thin=True)
            for name, start, end, _ in track.regions
        ]
        for name, start, end, waiting in track.calls:
            since = start + min(max(waiting, 0.0), end - start)  # A call first waits for late ranks.
            hint = _said("call_waits" if waiting else "call", name=name, length=end - start, waiting=waiting)
            stretches += [doc.Stretch(start, since, "k8", hint)] if since > start else []
            stretches.append(doc.Stretch(since, end, "k5", hint))
        stretches += [doc.Stretch(a, b, "k3", _said("idle", name=name, length=b - a)) for name, a, b, _ in track.idle]
        rows.append((f"rank {rank}{'*' if rank in culprits else ''}", tuple(stretches), f"{track.length_ms:.1f} ms"))
    title = _said("a_step" if timeline.step is None else "one_step", step=timeline.step)
    width = max(track.length_ms for track in timeline.ranks.values()) or 1.0
    drawing = doc.Tracks(title, tuple(rows), width, doc.Legend(tuple(_TABLE["step"]), (0, 1, 4, 5, 8, 3)), "ms")
    return doc.on_page(doc.Section(title, (doc.remark(_said("stretches")), drawing), 3))


def _heat(shares: Mapping[int, tuple[float, str]]) -> doc.Only:
    """Return a cell per rank, coloured by its share of lost time between the minimum and maximum of all ranks."""
    least, most = min(share for share, _ in shares.values()), max(share for share, _ in shares.values())
    scale = (_LEVELS - 1) / (most - least) if most - least >= _SAME else 0.0
    rows = []
    for place, ranks in groupby(shares, key=lambda rank: rank // _CELLS):
        row = {rank - place * _CELLS: shares[rank] for rank in ranks}
        cells = tuple(doc.Stretch(n, n + 1, f"h{round((v - least) * scale)}", hint) for n, (v, hint) in row.items())
        rows.append((str(place * _CELLS), cells, f"{max(v for v, _ in row.values()):.0%}"))
    note, drawing = _said("heat", least=least, most=most), doc.Tracks(_said("heat_title"), tuple(rows), _CELLS)
    return doc.on_page(doc.Section("All ranks", (doc.remark(note), drawing), 3))


def memory(report: Report) -> doc.Section | None:
    """Return memory over time, the highest peak first, followed by a comparison of all ranks."""
    culprits = _culprits(report, "bytes")
    ranks = measures.memory(report.measures, culprits)
    if not ranks:
        return None
    compared = measures.comparable(ranks)
    highest = sorted(ranks, key=lambda rank: (rank not in compared, -ranks[rank].peak_bytes, rank))
    stacked = {rank: stack for rank in highest if (stack := ranks[rank].over_time) is not None}
    curves = {rank: record for rank, record in compared.items() if len(record.curve) > 1}
    named = {rank: record for rank, record in ranks.items() if any(name != kinds.UNKNOWN for name, _ in record.at_peak)}
    alone = len(curves) == 1 and bool(stacked)
    pictures = doc.present(
        _over_time(stacked, {rank: record.name(rank) for rank, record in ranks.items()}, culprits) if stacked else None,
        doc.Section("All ranks" if stacked else "Over time", _curves(curves, culprits), 3)
        if curves and not alone
        else None,
        doc.Section("At the peak", (_at_peak(named, measures.drawn_as(report.measures)),), 3) if named else None,
    )
    return doc.Section(
        "Memory",
        doc.present(
            doc.Only(
                ("html", "markdown"),
                tuple(doc.Paragraph(_said("plan", text=text)) for text in measures.plan_lines(report.measures)),
            ),
            doc.on_page(*pictures),
            doc.Fold("Figures", (doc.table(measures.memory_rows(ranks)),)),
        ),
        id="memory",
    )


def _culprits(report: Report, chart: str) -> list[int]:
    """Return the ranks to mark in a chart: culprits of the causes that it is for, unless these are all ranks."""
    ranks = {rank for root in report.root_causes if traits(root.cause).chart == chart for rank in root.ranks}
    return [] if report.world_size and len(ranks) >= report.world_size else sorted(ranks)


def colours_of_memory(names: Sequence[str]) -> tuple[int, ...]:
    """Return the colour of each kind of memory, the same in all charts; other kinds use the remaining colours."""
    taken = {_KIND_COLOURS[name] for name in names if name in _KIND_COLOURS}
    free = iter([n for n in range(doc.COLOURS) if n not in taken])
    return tuple(_KIND_COLOURS[name] if name in _KIND_COLOURS else next(free, doc.COLOURS - 1) for name in names)


def _over_time(
    stacks: Mapping[int, MemoryStack], names_of: Mapping[int, str], culprits: Collection[int]
) -> doc.Section:
    names = tuple(dict.fromkeys(name for stack in stacks.values() for name in stack.kinds))
    folds = [
        doc.Fold(
            _said("fold", name=f"{names_of[rank]}{'*' if rank in culprits else ''}", stack=stack, what=of_what(stack)),
            doc.present(
                doc.Paragraph(_described(stack)),
                _areas(names_of[rank], stack),
                (doc.remark(f"{note[:1].upper()}{note[1:]}.") for note in memory_notes(stack)),
                doc.Fold(f"Figures of {names_of[rank]}", _moments(stack)),
            ),
            is_open=n == 0,
        )
        for n, (rank, stack) in enumerate(stacks.items())
    ]
    return doc.Section("Over time", (doc.Legend(names, colours_of_memory(names)), *folds), 3)


def _described(stack: MemoryStack) -> str:
    """Return `Peak of tensors: 14.8 GiB at 1.24 s, in step 3, backward: activations (62%), ...`."""
    peak, place = stack.peak, peak_place(stack.peak)
    place = f", {'' if place.startswith('at ') else 'in '}{place}" if place else ""
    named = [(name, size) for name, size in peak.largest if size > _NAMED_SHARE * peak.bytes]
    parts = ", ".join(f"{name}{share_text(size, peak.bytes)}" for name, size in named)
    parts = f": {parts}" if parts else ""
    text = _said("peak", stack=stack, what=of_what(stack), at=_time(stack, peak.time), place=place, parts=parts)
    if stack.failed is not None:
        text += _said("failed", failed=stack.failed, at=_time(stack, stack.failed.time))
    return text + (_said("capacity", stack=stack) if stack.capacity_bytes is not None else "")


def _time(stack: MemoryStack, time: float) -> str:
    """Return a time of a stack as text: `18.3 ms`, or `event 12`."""
    return f"event {time:,.0f}" if stack.unit == "event" else seconds_text(time)


def _areas(who: str, stack: MemoryStack) -> doc.Plot:
    """Return the kinds of memory stacked, with a line above the tensors, and the steps, the peak and the capacity."""
    most = max(sum(sizes) for _, *sizes in stack.rows)
    capacity = stack.capacity_bytes if stack.capacity_bytes and stack.capacity_bytes <= _FAR * most else None
    start, end = stack.rows[0][0], stack.rows[-1][0]
    sums = [(0.0, *accumulate(sizes)) for _, *sizes in stack.rows]
    curves = []
    for n, (name, colour) in enumerate(zip(stack.kinds, colours_of_memory(stack.kinds), strict=True)):
        size = stack.peak.kinds.get(name, 0.0)
        hint = _said("kind", name=name, size=size, share=share_text(size, stack.peak.bytes))
        if name in stack.unused:
            hint = _said("kind_unused", name=name, size=max(row[n + 1] for row in stack.rows))
        points = tuple((row[0], edges[n + 1]) for row, edges in zip(stack.rows, sums, strict=True))
        lower = tuple(edges[n] for edges in sums)
        curves.append(doc.Curve(hint, points, colour, lower=lower, faint=name in stack.unused))
    totals = tuple((row[0], stack.in_tensors(row)) for row in stack.rows)
    marks: list[doc.Mark] = []
    for time, step in stack.steps:  # Only steps that are far enough apart for their names.
        far = not marks or time - (marks[-1].x or 0.0) >= (end - start) / _STEPS
        if start <= time <= end and far:
            marks.append(doc.Mark(f"step {step}", x=time, tone="step", hint=_said("begins", step=step)))
    if capacity is not None:
        marks.append(doc.Mark(_said("capacity_mark", capacity=capacity), y=capacity))
    if stack.failed is not None:
        marks.append(doc.Mark(_said("failed_mark", failed=stack.failed), x=stack.failed.time))
    peak = f"peak {bytes_text(stack.peak.bytes)}"
    hint = ", ".join(filter(None, (peak, peak_place(stack.peak))))
    marks.append(doc.Mark(peak, stack.peak.time, stack.peak.bytes, "peak", hint))
    ticks = doc.round_values(start, end, _TICKS)
    return doc.Plot(
        _said("over_time", who=who, described=_described(stack)),
        doc.Axis(partial(_time, stack), start, end, ticks=tuple(ticks)),
        doc.axis(bytes_text, [0.0, _ABOVE * max(most, capacity or 0.0)], base=1024),
        (*curves, doc.Curve(of_what(stack), totals, "ink")),
        tuple(marks),
        legend=False,
        height=320.0,
    )


def _moments(stack: MemoryStack) -> tuple[doc.Block, ...]:
    """Return some moments as figures, including the peak, and their source."""
    width = max(1, len(stack.rows) // _MOMENTS)
    peak = min(range(len(stack.rows)), key=lambda n: abs(stack.rows[n][0] - stack.peak.time))
    rows: list[tuple[doc.Text | doc.Cell, ...]] = [("moment", "total", *stack.kinds)]
    for n in sorted({*range(0, len(stack.rows), width), len(stack.rows) - 1, peak}):
        time, *sizes = stack.rows[n]
        figures = [bytes_text(size) if size else "0" for size in (stack.in_tensors(stack.rows[n]), *sizes)]
        rows.append((_time(stack, time) + (" (peak)" if n == peak else ""), *figures))
    source = doc.Paragraph((doc.Span("From ", "soft"), doc.Span(stack.file, "code"))) if stack.file else None
    return doc.present(doc.table(rows, 1), source)


def _curves(ranks: Mapping[int, RankMemory], culprits: Collection[int]) -> tuple[doc.Block, ...]:
    """Return one line per rank; culprits are drawn last, on top of the others."""
    points = [point for record in ranks.values() for point in record.curve]
    start, end = min(time for time, _ in points), max(time for time, _ in points)
    ticks = tuple(start + after for after in doc.round_values(0.0, end - start, _TICKS))
    few = len(ranks) <= doc.COLOURS
    curves = []
    for n, (rank, record) in sorted(enumerate(ranks.items()), key=lambda item: item[1][0] in culprits):
        peak = max(record.curve, key=lambda point: point[1])
        parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in record.at_peak[:6])
        name = f"{record.name(rank)}{'*' if rank in culprits else ''}: peak {bytes_text(record.peak_bytes)}"
        stroke = "dashed" if few and n else "solid"  # Equal curves overlap: both remain visible.
        curves.append(
            doc.Curve(
                name,
                tuple(record.curve),
                n if few else doc.COLOURS - 2,
                stroke,  # type: ignore[arg-type]
                strong=rank in culprits,
                dots=(doc.Dot(*peak, f"{name}: {parts}" if parts else name),),
            )
        )
    drawing = doc.Plot(
        "Memory over time",
        doc.Axis(lambda time: seconds_text(time - start), start, end, ticks=ticks),
        doc.axis(bytes_text, [0.0, _ABOVE * max(size for _, size in points)], base=1024),
        tuple(curves),
        legend=few,
        height=260.0,
    )
    thick = doc.remark(_said("thick"))
    return doc.present(None if few else thick, drawing)


def _at_peak(ranks: Mapping[int, RankMemory], drawn_as: Mapping[str, str]) -> doc.Bars:
    """Return the composition of each rank's peak; kinds with the same colour over time are added up."""
    kinds: dict[int, Counter[str]] = {}
    for rank, record in ranks.items():
        kinds[rank] = Counter()
        for name, size in record.at_peak:
            kinds[rank][drawn_as.get(name, name)] += size  # type: ignore[assignment]  # a float as well
    totals = sum(kinds.values(), Counter[str]())
    names = sorted(totals, key=lambda name: (-totals[name], name))
    parts = names if len(names) <= doc.COLOURS else names[: doc.COLOURS - 1]
    others = names[len(parts) :]
    bars = []
    for rank, sizes in kinds.items():
        values = [sizes[name] for name in parts]
        values += [sum(sizes[name] for name in others)] if others else []
        texts = tuple(bytes_text(value) for value in values)
        bars.append(doc.Bar(ranks[rank].name(rank), tuple(values), texts, bytes_text(sum(values))))
    legend = (*parts, *(["other"] if others else []))
    return doc.Bars(_said("at_peak"), tuple(bars), legend, colours_of_memory(legend))
