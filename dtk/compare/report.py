"""Builds the document of a comparison: the answer, why, the figures, parity, and what disturbs them."""

from collections.abc import Callable, Sequence

from diagnostics.contract.formatting import bytes_text, seconds_text
from diagnostics.report import document as doc
from dtk.compare.formatting import (
    interval_text,
    number_text,
    percent_text,
    range_text,
    ratio_text,
    times_text,
    value_text,
)
from dtk.compare.model import Cell as Measured
from dtk.compare.model import Check, Comparison, Doubt, Figure, Scaled, Status, Variant, mapping

POINTS_DRAWN = 400
OUTCOMES = {"oom": "OOM", "hung": "HUNG", "failed": "FAILED", "lost": "LOST", "no steps": "no steps"}
_STATUSES: dict[Status, doc.Text] = {
    "same": doc.Span("same", "good"),
    "differs": doc.Span("DIFFERS", "bad"),
    "unknown": doc.Span("unknown", "warn"),
}
_STROKES = ("solid", "dashed", "dotted", "dash-dotted")
_PARTS = ("compute only", "compute and communication", "exposed communication", "copies", "idle and other")
_TIMES = ("wall_ms", "compute_ms", "overlapped_ms", "exposed_ms", "memory_ms")


def document(found: Comparison) -> doc.Document:
    """Return the document of a comparison."""
    tone: doc.Tone = "good" if found.comparable else "bad"
    colours = {variant.label: n % doc.COLOURS for n, variant in enumerate(found.variants)}
    by_key = {figure.key: figure for figure in found.figures}
    notes = tuple(doc.Span(note, "warn" if isinstance(note, Doubt) else "") for note in found.notes)
    return doc.Document(
        title=f"Comparison: {', '.join(variant.label for variant in found.variants)}",
        badge=("COMPARABLE" if found.comparable else "NOT COMPARABLE", tone),
        answer=doc.Span(headline(found), tone),
        heading=headline(found),
        lead=(doc.on_page(doc.remark(_about(found))),),
        blocks=doc.present(
            doc.Section("Why", (doc.Items(found.verdicts),)) if found.verdicts else None,
            doc.Section("Strategies and batches", (doc.table(grid(found), 1),)) if found.places else None,
            _bars("Throughput", by_key.get("tokens_per_s"), colours),
            _bars("Peak memory of the fullest rank", by_key.get("peak_memory_bytes"), colours),
            _breakdown(found),
            _losses(found, colours),
            _scaling(found.scaling) if found.scaling else None,
            doc.Section("Runs", (doc.table(_overview(found), 2), doc.on_page(doc.Fields(_run_names(found))))),
            _figures(found.figures) if found.figures else None,
            _parity(found.checks) if found.checks else None,
            doc.Section("Notes", (doc.Items(notes),)) if notes else None,
        ),
        footer="Made by dtk compare. The same as data: dtk compare with --json.",
    )


def headline(found: Comparison) -> str:
    """Return the answer in one sentence."""
    if not found.compared:
        return "no run has steps to compare"
    if not found.fair:
        wrong = [check.title for check in found.checks if check.status == "differs"]
        return f"not comparable: {', '.join(wrong)} differ{'s' if len(wrong) == 1 else ''}; no speed is compared"
    if found.repeats:
        only = found.variants[0]
        return f"one variant, {len(only.compared):,} repeats of {only.label}: there is no other to compare it with"
    if len(found.compared) < 2:
        return f"only {found.compared[0].label} has figures: there is nothing to compare it with"
    best = _fastest(found)
    return "comparable: the runs did the same work; " + (
        f"{best} is the fastest" if best else "no variant is clearly the fastest"
    )


def _fastest(found: Comparison) -> str:
    """Return the variant with the shortest step, if all are of one batch and noise cannot hide another one."""
    figure = next((figure for figure in found.figures if figure.key == "step_time_s"), None)
    times = [(cell.estimate, cell) for cell in (figure.cells if figure else ()) if cell.estimate is not None]
    if len(times) < 2 or len({cell.batch for _, cell in times}) > 1:
        return ""
    (first, cell), (second, _) = sorted(times, key=lambda pair: pair[0].median)[:2]
    apart = first.high is not None and second.low is not None and first.high < second.low
    return cell.variant if apart else ""


def _about(found: Comparison) -> str:
    first = found.variants[0].any
    source = mapping(first.manifest.get("data")).get("source")
    about = f"{first.get('model.name')} on {source or first.get('data.name')}"
    if len({variant.any.batch for variant in found.variants}) == 1:
        samples, tokens = first.batch
        about += f", batch {samples} x {tokens} tokens"
    return about


def grid(found: Comparison) -> list[tuple[str, ...]]:
    """Return strategies x batch sizes: step time and memory, or how the run ended."""
    columns = list(dict.fromkeys(place.column for place in found.places))
    rows: list[tuple[str, ...]] = [("step time, memory", *columns)]
    for name in dict.fromkeys(place.row for place in found.places):
        at = {place.column: place for place in found.places if place.row == name}
        texts = []
        for column in columns:
            place = at.get(column)
            if place is None:
                texts.append("-")
            elif place.step_time_s is None:
                texts.append(OUTCOMES.get(place.outcome, place.outcome))
            else:
                memory = "" if place.memory_bytes is None else f", {bytes_text(place.memory_bytes)}"
                texts.append(seconds_text(place.step_time_s) + memory)
        rows.append((name, *texts))
    return rows


def _bars(title: str, figure: Figure | None, colours: dict[str, int]) -> doc.Only | None:
    """Return one bar for each variant, the interval as a line across its end."""
    if figure is None:
        return None
    bars = []
    for cell in figure.cells:
        if cell.estimate is None:
            continue
        value, interval = cell.estimate, None
        text = value_text(value.median, figure.unit)
        if value.low is not None and value.high is not None:
            interval = (value.low, max(value.median, min(value.high, 2 * value.median)))  # Else it flattens the others.
        hint = f"{text} {interval_text(value, figure.unit)}".rstrip()
        end = text if cell.ratio is None else f"{text} ({times_text(cell.ratio.median)})"
        bars.append(
            doc.Bar(cell.variant, (value.median,), (hint,), end, interval, colours.get(cell.variant, doc.COLOURS - 2))
        )
    lines = " Lines: 95 % interval." if any(bar.interval for bar in bars) else ""
    note = f"{figure.definition[:1].upper()}{figure.definition[1:]}.{lines}"
    return doc.on_page(doc.Section(title, (doc.remark(note), doc.Bars(figure.title, tuple(bars)))))


def _breakdown(found: Comparison) -> doc.Only | None:
    """Return where a step of the profiled window goes, of the variants that recorded it."""
    bars = []
    for variant in found.compared:
        parts = [run.breakdown for run in variant.compared if run.breakdown is not None]
        if parts:
            mean = [sum(getattr(part, key) for part in parts) / len(parts) for key in _TIMES]
            wall, compute, overlapped, exposed, copies = mean
            rest = max(0.0, wall - compute - exposed - copies)
            values = (max(0.0, compute - overlapped), overlapped, exposed, copies, rest)
            texts = tuple(seconds_text(value / 1e3) for value in values)
            bars.append(doc.Bar(variant.label, values, texts, seconds_text(wall / 1e3)))
    if not bars:
        return None
    note = "Mean over ranks and steps of the profiler's window; at the end of a bar its length."
    drawing = doc.Bars("Where a step goes", tuple(bars), _PARTS)
    return doc.on_page(doc.Section("Where a step goes", (doc.remark(note), drawing)))


def _losses(found: Comparison, colours: dict[str, int]) -> doc.Only | None:
    """Return the training loss over steps; equal curves are dashed differently, so that all stay visible."""
    curves = []
    for n, variant in enumerate(found.compared):
        points = [(float(window.last), window.loss) for window in variant.any.windows if window.loss is not None]
        if len(points) > 1:
            step = -(-len(points) // POINTS_DRAWN)
            kept = tuple(dict.fromkeys((*points[::step], points[-1])))
            stroke = _STROKES[n % len(_STROKES)]
            curves.append(doc.Curve(variant.label, kept, colours[variant.label], stroke))  # type: ignore[arg-type]
    if not curves:
        return None
    drawing = _plot(curves, "Training loss over steps", "step", lambda value: f"{value:.3g}")
    return doc.on_page(doc.Section("Training loss", (drawing,)))


def _plot(
    curves: Sequence[doc.Curve], label: str, unit: str, text: Callable[[float], str], log: bool = False
) -> doc.Plot:
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ys = [y for curve in curves for _, y in curve.points]
    ticks = tuple(xs) if log else (xs[0], xs[-1])
    across = doc.axis(lambda value: f"{unit} {value:,.0f}", xs, log=log, ticks=ticks)
    return doc.Plot(label, across, doc.axis(text, ys, log=log, room=1.3 if log else 1.05), tuple(curves))


def _scaling(points: Sequence[Scaled]) -> doc.Section:
    """Return tokens/s over numbers of ranks beside what perfect scaling would give, on logarithmic axes."""
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
    note = (
        "Efficiency: tokens/s of a rank over those with the fewest ranks. Weak: the global batch grows with the ranks."
    )
    rows: list[tuple[str, ...]] = [("variant", "scaling", "ranks", "tokens/s", "efficiency")]
    for point in points:
        figures = (f"{point.world_size:,}", f"{point.tokens_per_s:,.0f}", percent_text(point.efficiency))
        rows.append((point.series, point.kind, *figures))
    drawing = _plot(curves, "Tokens per second over numbers of ranks", "ranks", number_text, log=True)
    return doc.Section("Scaling over numbers of ranks", (doc.on_page(doc.remark(note), drawing), doc.table(rows, 2)))


def _overview(found: Comparison) -> list[tuple[str, ...]]:
    """Return one row for each variant: medians, and the ratio of the speed."""
    rows = [("variant", "runs", *(figure.short for figure in found.figures), "speed to the first")]
    for variant in found.variants:
        cells = {
            figure.key: next((cell for cell in figure.cells if cell.variant == variant.label), None)
            for figure in found.figures
        }
        values = [_median(cells[figure.key], figure) for figure in found.figures]
        speed = cells.get("tokens_per_s")
        ratio = ratio_text(speed.ratio) if speed else ""
        rows.append((variant.label, runs_text(variant), *values, ratio or "-"))
    return rows


def runs_text(variant: Variant) -> str:
    """Return `3`, `2 of 3, OOM`, `OOM`."""
    good, every = len(variant.compared), len(variant.runs)
    if good == every:
        return str(every)
    outcome = OUTCOMES.get(variant.outcome, variant.outcome)
    return f"{good} of {every}, {outcome}" if good or every > 1 else outcome


def _run_names(found: Comparison) -> tuple[doc.Field, ...]:
    names = {variant.label: [(doc.Span(run.name, "code"), " ") for run in variant.runs] for variant in found.variants}
    return tuple(doc.Field(label, tuple(span for run in runs for span in run)) for label, runs in names.items())


def _figures(figures: Sequence[Figure]) -> doc.Section:
    """Return every figure of every variant: median, interval over repeats, ratio to the first."""
    rows: list[tuple[str, ...]] = [("figure", "variant", "median", "95 % interval", "ratio to the first")]
    for figure in figures:
        for n, cell in enumerate(figure.cells):
            shown = "" if cell.estimate is None else interval_text(cell.estimate, figure.unit)
            if not shown and cell.spread is not None:
                shown = f"steps: {range_text(*cell.spread, figure.unit)}"
            title = figure.title if n == 0 else ""
            rows.append((title, cell.variant, _median(cell, figure), shown or "-", ratio_text(cell.ratio) or "-"))
    defined = tuple(doc.Field(figure.title, figure.definition) for figure in figures)
    blocks: tuple[doc.Block, ...] = (doc.table(rows, 2), doc.on_page(doc.Fields(defined)))
    return doc.Section("Figures", blocks)


def _median(cell: Measured | None, figure: Figure) -> str:
    if cell is None or cell.estimate is None:
        return "-"
    shown = value_text(cell.estimate.median, figure.unit)
    return shown.removesuffix(f" {figure.unit}") if figure.title == figure.unit else shown


def _parity(checks: Sequence[Check]) -> doc.Section:
    rows = tuple((check.title, _STATUSES[check.status], check.detail) for check in checks)
    return doc.Section("Parity: did they do the same work?", (doc.Table(("condition", "status", "found"), rows, 3),))
