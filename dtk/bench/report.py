"""Builds the document of `dtk bench comm`: the verdict or the best of each operation, curves, and all figures."""

from collections.abc import Sequence

from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from diagnostics.report import document as doc
from dtk.bench.bandwidth import DEFINITIONS, OPERATIONS
from dtk.bench.model import BenchReport, Result
from dtk.compare.statistics import METHOD

_ROOM = 1.25  # Above and below the outermost figures of a logarithmic axis, as a factor.
_TICKS = 10  # Labels that fit side by side under a plot.


def document(report: BenchReport, *, page: str = "") -> doc.Document:
    """Return the document."""
    versions = [f"{name} {report.about[name]}" for name in ("host", "torch", "nccl") if report.about.get(name)]
    badge: tuple[str, doc.Tone] = ("RESULTS VERIFIED", "good")
    if report.failure or report.wrong:
        badge = ("ENDED EARLY" if report.failure else "WRONG RESULTS", "bad")
    elif all(result.wrong_elements is None for result in report.results):
        badge = ("NOT VERIFIED", "warn")
    alarms = [f"ended early: {report.failure}"] if report.failure else []
    alarms += ["WRONG RESULTS: see the last column"] if report.wrong else []
    verdict = doc.Paragraph(doc.Span(_verdict(report), "strong")) if len(report.sides) == 2 else None
    variables = tuple(
        doc.Field(side.name, " ".join(f"{k}={v}" for k, v in side.effective.items()) or "sets no variable")
        for side in report.sides
        if len(report.sides) > 1 or side.variables
    )
    texts = {**DEFINITIONS, "interval": METHOD}
    meaning = [doc.Field(name, doc.Span(text, "soft")) for name, text in texts.items()]
    meaning += [doc.Field("note", doc.Span(note, "warn")) for note in report.notes]
    named = doc.Only(("terminal",), (doc.Fields((doc.Field("page", page),)),)) if page else None
    about = tuple(doc.Field("best", text) for text in _best(report))
    return doc.Document(
        title=f"Collectives: {_title(report)}",
        badge=badge,
        answer=doc.Span(_title(report), "strong"),
        heading=_title(report),
        lead=doc.present(
            [doc.Paragraph(doc.Span(text, "bad")) for text in alarms],
            verdict,
            doc.Fields(variables) if variables else None,
            doc.Fields(about) if about else None,
            doc.on_page(doc.remark(", ".join(versions))),
        ),
        blocks=doc.present(
            _plots(report),
            doc.Section("Side by side, launches in turns", (doc.table(_gains(report)),)) if report.gains else None,
            _figures(report),
            doc.Section("What the figures mean", doc.present(doc.Fields(tuple(meaning)), named)),
        ),
        footer="Made by dtk bench comm. The same as data: dtk bench comm with --json.",
    )


def _title(report: BenchReport) -> str:
    """Return `5 operations over gloo, 2 ranks on cpu (x86_64), float32`."""
    operations = counted(len({result.operation for result in report.results}), "operation")
    device = str(report.about.get("device", ""))
    on = f"{report.device} ({device})" if device else report.device
    return f"{operations} over {report.backend}, {counted(report.world_size, 'rank')} on {on}, {report.dtype}"


def _verdict(report: BenchReport) -> str:
    (first, second), sizes = (side.name for side in report.sides), len(report.gains)
    faster = sum(gain.verdict == "faster" for gain in report.gains)
    slower = sum(gain.verdict == "slower" for gain in report.gains)
    if not sizes:
        return "nothing was measured under both presets"
    if not faster and not slower:
        return f"no gain distinguishable from noise: {second} over {first}, {counted(sizes, 'size')}"
    noise = f"indistinguishable from noise at {sizes - faster - slower} of {counted(sizes, 'size')}"
    return f"{second} over {first}: faster at {faster}, slower at {slower}, {noise}"


def _best(report: BenchReport) -> list[str]:
    """Return for every operation and side where its bus bandwidth is highest."""
    texts = []
    for side in report.sides:
        for operation in OPERATIONS:
            results = [result for result in report.results if (result.operation, result.side) == (operation, side.name)]
            rates = [(result.busbw(report.world_size).median, -result.size_bytes) for result in results]
            if rates:
                rate, size = max(rates)
                under = f" under {side.name}" if len(report.sides) > 1 else ""
                texts.append(f"{operation}{under}: {_rate(rate)} GB/s bus bandwidth at {bytes_text(-size)}")
    return texts


def _plots(report: BenchReport) -> doc.Only | None:
    """Return one picture of all operations, or one for each operation with both presets."""
    title = "Bus bandwidth over message size"
    pictures: tuple[doc.Block, ...] = ()
    if len(report.sides) == 1:
        curves = [_curve(report, report.results, name, name, n) for n, name in enumerate(OPERATIONS)]
        pictures = doc.present(_plot(curves, title))
    else:
        for operation in OPERATIONS:
            curves = []
            for n, side in enumerate(report.sides):
                results = [result for result in report.results if result.side == side.name]
                curves.append(_curve(report, results, operation, side.name, n))
            drawing = _plot(curves, f"Bus bandwidth of {operation} over message size")
            pictures = doc.present(
                pictures, doc.Section(doc.Span(operation, "code"), (drawing,), 3) if drawing else None
            )
    if not pictures:
        return None
    axes = doc.remark("Both axes are logarithmic. The line through a point is its interval.")
    return doc.on_page(doc.Section(title, (axes, *pictures)))


def _curve(report: BenchReport, results: Sequence[Result], operation: str, name: str, colour: int) -> doc.Curve | None:
    """Return the points that a logarithmic axis can show."""
    dots = []
    for result in results:
        rate = result.busbw(report.world_size)
        if result.operation != operation or rate.median <= 0:
            continue
        interval = None if rate.low is None or rate.high is None else (rate.low, rate.high)
        hint = f"{name}, {bytes_text(result.size_bytes)}: {rate.median:.3g} GB/s"
        hint += f" ({interval[0]:.3g} - {interval[1]:.3g})" if interval else ""
        dots.append(doc.Dot(result.size_bytes, rate.median, hint, interval))
    points = tuple((dot.x, dot.y) for dot in dots)
    return doc.Curve(name, points, colour % doc.COLOURS, dots=tuple(dots)) if dots else None


def _plot(curves: Sequence[doc.Curve | None], label: str) -> doc.Plot | None:
    drawn = [curve for curve in curves if curve is not None]
    if not drawn:
        return None
    dots = [dot for curve in drawn for dot in curve.dots]
    middle = [dot.y for dot in dots]
    bounds = [bound for dot in dots for bound in dot.interval or ()]
    # One repeat far off, as an interval of few figures is, must not flatten the curves.
    inside = [min(max(bound, min(middle) / 10), max(middle) * 10) for bound in bounds]
    sizes = sorted({dot.x for dot in dots})
    across = doc.axis(bytes_text, sizes, log=True, ticks=sizes[:: -(-len(sizes) // _TICKS)])
    up = doc.axis(lambda value: f"{value:.3g} GB/s", [*middle, *inside], log=True, room=_ROOM)
    return doc.Plot(label, across, up, tuple(drawn))


def _gains(report: BenchReport) -> list[tuple[str, ...]]:
    first, second = (side.name for side in report.sides)
    busbw = {(r.side, r.operation, r.size_bytes): r.busbw(report.world_size).median for r in report.results}
    heading = ("operation", "size", f"{first} GB/s", f"{second} GB/s", "ratio", "interval", f"{second} is")
    rows: list[tuple[str, ...]] = [heading]
    for gain in report.gains:
        rates = (_rate(busbw[name, gain.operation, gain.size_bytes]) for name in (first, second))
        ratio = (f"{gain.ratio.median:.3f}", gain.ratio.span("{:.3f}".format) or "-")
        rows.append((gain.operation, bytes_text(gain.size_bytes), *rates, *ratio, gain.verdict))
    return rows


def _figures(report: BenchReport) -> doc.Section | None:
    """Return all figures as nccl-tests lists them, with intervals."""
    if not report.results:
        return None
    several = len(report.sides) > 1
    heading = ["operation", "size", "count", "calls", "time", "interval", "algbw GB/s", "busbw GB/s", "interval"]
    rows = [(*(("preset",) if several else ()), *heading, "wrong")]
    for result in report.results:
        busbw, time_s = result.busbw(report.world_size), result.time_s
        sizes = (bytes_text(result.size_bytes), f"{result.count:,}", str(result.calls))
        times = (seconds_text(time_s.median), time_s.span(seconds_text) or "-")
        rates = (_rate(result.algbw().median), _rate(busbw.median), busbw.span(_rate) or "-")
        wrong = "not verified" if result.wrong_elements is None else f"{result.wrong_elements:,}"
        side = (result.side,) if several else ()
        rows.append((*side, result.operation, *sizes, *times, *rates, wrong))
    left_out = tuple(
        doc.Field("left out", f"{cell['operation']} from {bytes_text(cell['size_bytes'])} on: {cell['reason']}")
        for cell in report.left_out
    )
    return doc.Section("All figures", doc.present(doc.table(rows), doc.Fields(left_out) if left_out else None))


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
