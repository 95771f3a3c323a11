"""The report as one HTML page: no network, no script, opens from disk. What the user named stays text."""

from collections.abc import Sequence

from diagnostics.analysis.statistics import METHOD
from diagnostics.report.frame import document
from diagnostics.report.markup import Markup, el, join
from dtk.bench import tables
from dtk.bench.bandwidth import DEFINITIONS, OPERATIONS
from dtk.bench.model import BenchReport, Result
from dtk.bench.plot import Curve, Point, log_log


def render(report: BenchReport) -> str:
    """The whole page."""
    title = f"Collectives: {tables.title(report)}"
    parts = [_plots(report), _gains(report), _figures(report), _variables(report), _meaning(report)]
    footer = el("footer", "Made by dtk bench comm. The same as data: dtk bench comm with --json.")
    shown = [part for part in (*parts, footer) if part is not None]
    return document(title, _header(report), el("main", *shown, id="main"))


def _header(report: BenchReport) -> Markup:
    kind, word = ("unfit", "WRONG RESULTS") if report.wrong else ("fits", "RESULTS VERIFIED")
    if not report.wrong and all(one.wrong_elements is None for one in report.results):
        kind, word = "undecided", "NOT VERIFIED"
    if report.failure:
        kind, word = "unfit", "ENDED EARLY"
    told = [tables.verdict(report)] if len(report.sides) == 2 else tables.best(report)
    return el(
        "header",
        el(
            "div",
            el("div", el("span", word, class_=f"badge {kind}"), class_="bar"),
            el("h1", tables.title(report)),
            el("p", report.failure) if report.failure else None,
            *(el("p", text) for text in told),
            el("p", _versions(report), class_="soft"),
        ),
    )


def _versions(report: BenchReport) -> str:
    found = [f"{name} {report.about[name]}" for name in ("host", "torch", "nccl") if report.about.get(name)]
    return ", ".join(found)


def _plots(report: BenchReport) -> Markup | None:
    """One picture of all operations, or one per operation with both presets."""
    drawn = []
    if len(report.sides) == 1:
        curves = [_curve(report, report.results, name, name) for name in OPERATIONS]
        made = [curve for curve in curves if curve is not None]
        drawn += [log_log(made, "Bus bandwidth over message size")] if made else []
    else:
        for operation in OPERATIONS:
            found = [one for one in report.results if one.operation == operation]
            curves = [
                _curve(report, [one for one in found if one.side == side.name], operation, side.name)
                for side in report.sides
            ]
            made = [curve for curve in curves if curve is not None]
            if made:
                drawn += [el("h3", operation), log_log(made, f"Bus bandwidth of {operation} over message size")]
    if not drawn:
        return None
    told = "Both axes are logarithmic. The line through a point is its interval."
    return el("section", el("h2", "Bus bandwidth over message size"), el("p", told, class_="soft"), *drawn)


def _curve(report: BenchReport, results: Sequence[Result], operation: str, name: str) -> Curve | None:
    """The points that a logarithmic axis can show."""
    rates = [(one, one.busbw(report.world_size)) for one in results if one.operation == operation]
    points = tuple(Point(one.size_bytes, rate.median, rate.low, rate.high) for one, rate in rates if rate.median > 0)
    return Curve(name, points) if points else None


def _gains(report: BenchReport) -> Markup | None:
    if not report.gains:
        return None
    return el("section", el("h2", "Side by side, launches in turns"), _table(tables.gains(report)))


def _figures(report: BenchReport) -> Markup | None:
    if not report.results:
        return None
    reasons = [el("li", f"{name} {reason}") for name, reason in tables.left_out(report)]
    left = el("ul", *reasons, class_="plain") if reasons else None
    return el("section", el("h2", "All figures"), _table(tables.results(report)), left)


def _variables(report: BenchReport) -> Markup | None:
    found = tables.sides(report)
    if not found:
        return None
    rows = [join(el("dt", name), el("dd", el("code", variables))) for name, variables in found]
    return el("section", el("h2", "Presets"), el("dl", *rows))


def _meaning(report: BenchReport) -> Markup:
    rows = [join(el("dt", name), el("dd", text)) for name, text in {**DEFINITIONS, "interval": METHOD}.items()]
    notes = el("ul", *(el("li", note) for note in report.notes)) if report.notes else None
    return el("section", el("h2", "What the figures mean"), notes, el("dl", *rows))


def _table(rows: Sequence[Sequence[str]]) -> Markup:
    """Heading first; figures flush right."""
    kinds = ["number" if tables.numeric(rows, n) else None for n in range(len(rows[0]))]
    head = el("thead", el("tr", *(el("th", name, scope="col", class_=kind) for name, kind in zip(rows[0], kinds))))
    body = el(
        "tbody",
        *(el("tr", *(el("td", cell, class_=kind) for cell, kind in zip(row, kinds))) for row in rows[1:]),
    )
    return el("div", el("table", head, body), class_="scroll")
