"""The report as one HTML page: no network, no script, opens from disk. What the user named stays text."""

from collections.abc import Sequence

from diagnostics.report.frame import document
from diagnostics.report.markup import Markup, el, join
from dtk.plan.compare import Comparison
from dtk.plan.formatting import bytes_text
from dtk.plan.prediction import Category, Prediction
from dtk.plan.report import plots, tables
from dtk.plan.report.model import PlanReport
from dtk.plan.report.plots import Curve
from dtk.plan.scaling import Point

_BADGES = {True: ("fits", "FITS"), False: ("unfit", "DOES NOT FIT"), None: ("undecided", "NO DEVICE CHOSEN")}


def render(report: PlanReport) -> str:
    """The whole page."""
    title = f"Plan: {tables.title(report.plan)}"
    return document(title, _header(report), el("main", *_sections(report), id="main"))


def _header(report: PlanReport) -> Markup:
    plan = report.plan
    kind, word = _BADGES[plan.fits]
    return el(
        "header",
        el(
            "div",
            el("div", el("span", word, class_=f"badge {kind}"), class_="bar"),
            el("h1", tables.title(plan)),
            el("p", tables.verdict(plan)),
            el("p", tables.batch(plan), class_="soft"),
            el("p", f"Compute in {tables.precision(report)}.", class_="soft"),
            el("p", *(join(el("code", text), " ") for text in report.job)) if report.job else None,
        ),
    )


def _sections(report: PlanReport) -> list[Markup]:
    rows = report.comparison.rows if report.comparison else ()
    used = tables.used([report.plan, *(row.prediction for row in rows if row.prediction is not None)])
    parts = [
        _memory(report.plan, used),
        _scaling(report.scaling, report.plan),
        _comparison(report.comparison, used),
        _traffic(report),
        _time(report.plan),
        _check(report),
        _largest(report),
        _notes(report),
    ]
    footer = el("footer", "Made by dtk plan. The same as data: dtk plan with --json.")
    return [part for part in (*parts, footer) if part is not None]


def _memory(plan: Prediction, used: Sequence[Category]) -> Markup:
    rows = [(name, bytes_text(size)) for name, size in tables.memory(plan)]
    return el(
        "section",
        el("h2", f"Memory of the fullest rank ({plan.memory.rank}) at the peak"),
        plots.categories([(plan.strategy, plan)], used),
        el("p", tables.regions(plan)),
        el("p", f"{tables.host(plan)} in host memory") if tables.host(plan) else None,
        el("details", el("summary", "Figures"), _table([("category", "bytes at the peak"), *rows])),
    )


def _scaling(points: Sequence[Point], plan: Prediction) -> Markup | None:
    made = [point.prediction for point in points if point.prediction is not None]
    if not made:
        return None
    memory = Curve(plan.strategy, tuple((one.world_size, float(one.memory.peak_bytes)) for one in made), "l0")
    speeds = tuple((one.world_size, one.time.tokens_per_s) for one in made if one.time is not None)
    drawn = [el("h3", "Memory per rank"), plots.memory_over_ranks([memory], plan.device_memory_bytes)]
    if speeds:
        first, speed = speeds[0]
        ideal = tuple((count, speed * count / first) for count, _ in speeds)
        lines = [Curve(plan.strategy, speeds, "l0"), Curve("as many times the first", ideal, "ideal")]
        drawn += [el("h3", "Tokens per second"), plots.speed_over_ranks(lines)]
    return el(
        "section",
        el("h2", "Over numbers of ranks"),
        el(
            "p",
            "Each rank does as much as in the planned job, so the global batch grows with the ranks.",
            class_="soft",
        ),
        *drawn,
        el("details", el("summary", "Figures"), _table(tables.scaling(points))),
        _remarks(tables.impossible(points)),
    )


def _comparison(comparison: Comparison | None, used: Sequence[Category]) -> Markup | None:
    if comparison is None:
        return None
    made = [(row.variant.name, row.prediction) for row in comparison.rows if row.prediction is not None]
    chosen = comparison.recommended
    taken = el("p", "Take ", el("code", " ".join(chosen.overrides))) if chosen is not None else None
    return el(
        "section",
        el("h2", "Strategies side by side, the simplest first"),
        taken,
        el("ul", *(el("li", reason) for reason in comparison.reasons), class_="plain"),
        plots.categories(made, used) if made else None,
        _table(tables.comparison(comparison)),
        _remarks(tables.remarks(comparison)),
    )


def _remarks(found: Sequence[tuple[str, str]]) -> Markup | None:
    return el("ul", *(el("li", f"{label}: {text}") for label, text in found), class_="plain") if found else None


def _traffic(report: PlanReport) -> Markup:
    rows = tables.traffic(report.plan)
    told = f"Per optimizer step; {report.local_size} ranks share a node."
    inside = _table(rows) if len(rows) > 1 else el("p", "None: there is one rank.")
    return el("section", el("h2", "Communication of one rank"), el("p", told, class_="soft"), inside)


def _time(plan: Prediction) -> Markup | None:
    if plan.time is None:
        return None
    rows = [join(el("dt", name), el("dd", value)) for name, value in tables.time(plan.time)]
    sent = tables.transfers(plan.time)
    shown = _table(sent) if len(sent) > 1 else None
    return el("section", el("h2", f"Time of one step on {plan.hardware}"), el("dl", *rows), shown)


def _check(report: PlanReport) -> Markup | None:
    if report.check is None:
        return None
    found = report.check.differences
    shown = _table(tables.differences(found)) if found else None
    return el("section", el("h2", tables.CHECKED), el("p", tables.agreement(report.check)), shown)


def _largest(report: PlanReport) -> Markup | None:
    found = [*report.models, *([report.batch] if report.batch is not None else [])]
    return el("section", el("h2", "The largest that fits"), _table(tables.largest(found))) if found else None


def _notes(report: PlanReport) -> Markup | None:
    notes = tables.notes(report.plan, report.check, report.notes)
    return el("section", el("h2", "Assumed"), el("ul", *(el("li", note) for note in notes))) if notes else None


def _table(rows: Sequence[Sequence[str]]) -> Markup:
    """Heading first."""
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in rows[0])))
    body = el("tbody", *(el("tr", *(el("td", cell) for cell in row)) for row in rows[1:]))
    return el("div", el("table", head, body), class_="scroll")
