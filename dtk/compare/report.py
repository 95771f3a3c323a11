"""Builds the document of a comparison: the answer, the reasons, the figures, parity and disturbances."""

from collections.abc import Callable, Mapping, Sequence

from diagnostics.contract.formatting import bytes_text, seconds_text
from diagnostics.report import document as doc
from diagnostics.report.measures import Breakdown
from diagnostics.runs.records import as_mapping
from dtk.compare.formatting import interval_text, number_text, range_text, ratio_text, times_text, value_text
from dtk.compare.model import Cell as Measured
from dtk.compare.model import Comparison, Doubt, Figure, Scaled, Status, Variant

POINTS_DRAWN = 400  # Chosen: more points look the same and only enlarge the page.
OUTCOMES = {"oom": "OOM", "hung": "HUNG", "failed": "FAILED", "lost": "LOST", "no steps": "no steps"}
_STATUSES: dict[Status, doc.Text] = {
    "same": doc.Span("same", "good"),
    "differs": doc.Span("DIFFERS", "bad"),
    "unknown": doc.Span("unknown", "warn"),
}
_STROKES = ("solid", "dashed", "dotted", "dash-dotted")
_PARTS = ("compute only", "compute and communication", "exposed communication", "idle and other", "copies")
_TIMES = ("wall_ms", "compute_ms", "overlapped_ms", "exposed_ms", "memory_ms")


def document(comparison: Comparison) -> doc.Document:
    """Return the document of a comparison."""
    tone: doc.Tone = "good" if comparison.comparable else "bad"
    colours = {variant.label: n % doc.COLOURS for n, variant in enumerate(comparison.variants)}
    by_key = {figure.key: figure for figure in comparison.figures}
    rows = tuple((check.title, _STATUSES[check.status], check.detail) for check in comparison.checks)
    parity = doc.Table(("condition", "status", "found"), rows, 3)
    names = tuple(
        doc.Field(variant.label, tuple(span for run in variant.runs for span in (doc.Span(run.name, "code"), " ")))
        for variant in comparison.variants
    )
    notes = tuple(doc.Span(note, "warn" if isinstance(note, Doubt) else "") for note in comparison.notes)
    profiled = {one.label: [run.breakdown for run in one.compared if run.breakdown] for one in comparison.compared}
    return doc.Document(
        title=f"Comparison: {', '.join(variant.label for variant in comparison.variants)}",
        badge=("COMPARABLE" if comparison.comparable else "NOT COMPARABLE", tone),
        answer=doc.Span(headline(comparison), tone),
        heading=headline(comparison),
        lead=(doc.on_page(doc.remark(_about(comparison))),),
        blocks=doc.present(
            doc.Section("Why", (doc.Items(comparison.verdicts),)) if comparison.verdicts else None,
            doc.Section("Strategies and batches", (doc.table(grid(comparison), 1),)) if comparison.grid else None,
            _bars("Throughput", by_key.get("tokens_per_s"), colours),
            _bars("Peak memory of the fullest rank", by_key.get("peak_memory_bytes"), colours),
            doc.on_page(where_a_step_goes(profiled)) if any(profiled.values()) else None,
            _losses(comparison, colours),
            _scaling(comparison.scaling) if comparison.scaling else None,
            doc.Section("Runs", (doc.table(_overview(comparison), 2), doc.on_page(doc.Fields(names)))),
            _figures(comparison.figures) if comparison.figures else None,
            doc.Section("Parity: did they do the same work?", (parity,)) if comparison.checks else None,
            doc.Section("Notes", (doc.Items(notes),)) if notes else None,
        ),
        footer="Made by dtk compare. The same as data: dtk compare with --json.",
    )


def headline(comparison: Comparison) -> str:
    """Return the answer in one sentence."""
    if not comparison.compared:
        return "no run has steps to compare"
    if not comparison.fair:
        wrong = [check.title for check in comparison.checks if check.status == "differs"]
        return f"not comparable: {', '.join(wrong)} differ{'s' if len(wrong) == 1 else ''}; no speed is compared"
    if comparison.repeats:
        (only,) = comparison.variants
        return f"one variant, {len(only.compared):,} repeats of {only.label}: there is nothing to compare them with"
    if len(comparison.compared) < 2:
        return f"only {comparison.compared[0].label} has figures: there is nothing to compare it with"
    if comparison.doubt:
        return f"not known to be comparable ({comparison.doubt}); nothing else differs"
    fastest = "no variant is clearly the fastest"
    cells = [cell for figure in comparison.figures if figure.key == "step_time_s" for cell in figure.cells]
    times = sorted(((c.estimate, c.variant) for c in cells if c.estimate), key=lambda pair: pair[0].median)
    if len(times) > 1 and len({cell.batch for cell in cells if cell.estimate}) == 1:
        (first, variant), (second, _) = times[:2]
        if first.high is not None and second.low is not None and first.high < second.low:  # Noise hides no other one.
            fastest = f"{variant} is the fastest"
    return f"comparable: the runs did the same work; {fastest}"


def _about(comparison: Comparison) -> str:
    first = comparison.variants[0].any
    source = as_mapping(first.manifest.get("data")).get("source")
    about = f"{first.get('model.name')} on {source or first.get('data.name')}"
    if len({variant.any.batch for variant in comparison.variants}) == 1:
        samples, tokens = first.batch
        about += f", batch {samples} x {tokens} tokens"
    return about


def grid(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return strategies x batch sizes: step time and memory, or how the run ended."""
    columns = list(dict.fromkeys(cell.column for cell in comparison.grid))
    rows: dict[str, dict[str, str]] = {}
    for cell in comparison.grid:
        text = OUTCOMES.get(cell.outcome, cell.outcome)
        if cell.step_time_s is not None:
            memory = "" if cell.memory_bytes is None else f", {bytes_text(cell.memory_bytes)}"
            text = seconds_text(cell.step_time_s) + memory
        rows.setdefault(cell.row, {})[cell.column] = text
    body = ((name, *(texts.get(column, "-") for column in columns)) for name, texts in rows.items())
    return [("step time, memory", *columns), *body]


def _bars(title: str, figure: Figure | None, colours: dict[str, int]) -> doc.Only | None:
    """Return one bar per variant, the interval as a line across its end."""
    if figure is None:
        return None
    bars = []
    for cell in figure.cells:
        if (value := cell.estimate) is None:
            continue
        text, interval = value_text(value.median, figure.unit), None
        if value.low is not None and value.high is not None:
            interval = (value.low, max(value.median, min(value.high, 2 * value.median)))  # Else it flattens the others.
        hint = f"{text} {interval_text(value, figure.unit)}".rstrip()
        end = text if cell.ratio is None else f"{text} ({times_text(cell.ratio.median)})"
        colour = colours.get(cell.variant, doc.COLOURS - 2)
        bars.append(doc.Bar(cell.variant, (value.median,), (hint,), end, interval, colour))
    lines = " Lines: 95% interval." if any(bar.interval for bar in bars) else ""
    note = f"{figure.definition[:1].upper()}{figure.definition[1:]}.{lines}"
    return doc.on_page(doc.Section(title, (doc.remark(note), doc.Bars(figure.title, tuple(bars)))))


def where_a_step_goes(steps: Mapping[str, Sequence[Breakdown]]) -> doc.Section:
    """Return a bar per name, the mean of its breakdowns; names without any are omitted."""
    bars = []
    for name, parts in steps.items():
        if parts:
            mean = [sum(getattr(part, key) for part in parts) / len(parts) for key in _TIMES]
            wall, compute, overlapped, exposed, copies = mean
            rest = max(0.0, wall - compute - exposed - copies)
            values = (max(0.0, compute - overlapped), overlapped, exposed, rest, copies)
            texts = tuple(seconds_text(value / 1e3) for value in values)
            bars.append(doc.Bar(name, values, texts, seconds_text(wall / 1e3)))
    note = "Mean over ranks and steps of the profiler's window; at the end of a bar its length."
    drawing = doc.Bars("Where a step goes", tuple(bars), _PARTS)
    return doc.Section("Where a step goes", (doc.remark(note), drawing))


def _losses(comparison: Comparison, colours: dict[str, int]) -> doc.Only | None:
    """Return the training loss over steps; equal curves are dashed differently, so that all stay visible."""
    curves = []
    for n, variant in enumerate(comparison.compared):
        points = [(float(window.last), window.loss) for window in variant.any.windows if window.loss is not None]
        if len(points) > 1:
            step = -(-len(points) // POINTS_DRAWN)
            drawn = tuple(dict.fromkeys((*points[::step], points[-1])))
            stroke = _STROKES[n % len(_STROKES)]
            curves.append(doc.Curve(variant.label, drawn, colours[variant.label], stroke))  # type: ignore[arg-type]
    if not curves:
        return None
    drawing = _plot(curves, "Training loss over steps", "step", lambda value: f"{value:.3g}")
    return doc.on_page(doc.Section("Training loss", (drawing,)))


def _plot(
    curves: Sequence[doc.Curve], label: str, unit: str, text: Callable[[float], str], log: bool = False
) -> doc.Plot:
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ys = [y for curve in curves for _, y in curve.points]
    ticks = xs if log else [x for x in doc.round_values(xs[0], xs[-1], 5) if x.is_integer()]
    across = doc.axis(lambda value: f"{unit} {value:,.0f}", xs, log=log, ticks=ticks)
    return doc.Plot(label, across, doc.axis(text, ys, log=log, room=1.3 if log else 1.05), tuple(curves))


def _scaling(points: Sequence[Scaled]) -> doc.Section:
    """Return tokens/s over numbers of ranks and perfect scaling, on logarithmic axes."""
    series: dict[tuple[str, str], list[Scaled]] = {}
    for point in points:
        series.setdefault((point.series, point.kind), []).append(point)
    curves = []
    for n, ((variant, kind), members) in enumerate(series.items()):
        name = f"{variant}, {kind} scaling"
        measured = tuple((float(point.world_size), max(point.tokens_per_s, 1e-9)) for point in members)
        dots = tuple(doc.Dot(x, y, f"{name}, {x:,.0f}: {number_text(y)}") for x, y in measured)
        first, speed = measured[0]
        ideal = tuple((size, speed * size / first) for size, _ in measured)
        curves += [doc.Curve(name, measured, n, dots=dots), doc.Curve(f"{variant}, perfect", ideal, "reference")]
    note = "Efficiency: tokens/s of a rank over those with the fewest ranks. Weak: global batch grows with the ranks."
    rows: list[tuple[str, ...]] = [("variant", "scaling", "ranks", "tokens/s", "efficiency")]
    for point in points:
        figures = (f"{point.world_size:,}", f"{point.tokens_per_s:,.0f}", f"{point.efficiency:.0%}")
        rows.append((point.series, point.kind, *figures))
    drawing = _plot(curves, "Tokens per second over numbers of ranks", "ranks", number_text, log=True)
    return doc.Section("Scaling over numbers of ranks", (doc.on_page(doc.remark(note), drawing), doc.table(rows, 2)))


def _overview(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return one row per variant: medians, and the ratio of the speed."""
    rows = [("variant", "runs", *(figure.short for figure in comparison.figures), "speed ratio, by pairs")]
    for variant in comparison.variants:
        cells = {f.key: next((c for c in f.cells if c.variant == variant.label), None) for f in comparison.figures}
        medians = (_median(cells[figure.key], figure) for figure in comparison.figures)
        speed = cells.get("tokens_per_s")
        rows.append((variant.label, runs_text(variant), *medians, (ratio_text(speed.ratio) if speed else "") or "-"))
    return rows


def runs_text(variant: Variant) -> str:
    """Return `3`, `2 of 3, OOM`, `OOM`."""
    good, every = len(variant.compared), len(variant.runs)
    if good == every:
        return str(every)
    outcome = OUTCOMES.get(variant.outcome, variant.outcome)
    return f"{good} of {every}, {outcome}" if good or every > 1 else outcome


def _figures(figures: Sequence[Figure]) -> doc.Section:
    """Return every figure of every variant: median, interval over repeats, ratio to the first."""
    rows: list[tuple[str, ...]] = [("figure", "variant", "median", "95% interval", "ratio to the first, by pairs")]
    for figure in figures:
        for n, cell in enumerate(figure.cells):
            span = "" if cell.estimate is None else interval_text(cell.estimate, figure.unit)
            if not span and cell.spread is not None:
                span = f"steps: {range_text(*cell.spread, figure.unit)}"
            title = figure.title if n == 0 else ""
            rows.append((title, cell.variant, _median(cell, figure), span or "-", ratio_text(cell.ratio) or "-"))
    defined = tuple(doc.Field(figure.title, figure.definition) for figure in figures)
    return doc.Section("Figures", (doc.table(rows, 2), doc.on_page(doc.Fields(defined))))


def _median(cell: Measured | None, figure: Figure) -> str:
    if cell is None or cell.estimate is None:
        return "-"
    text = value_text(cell.estimate.median, figure.unit)
    return text.removesuffix(f" {figure.unit}") if figure.title == figure.unit else text
