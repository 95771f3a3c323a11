"""A comparison as one HTML page: no network, no script, opens from disk. What comes from files stays text."""

from collections.abc import Sequence

from diagnostics.report.frame import document
from diagnostics.report.markup import Markup, el, join
from dtk.compare import plots, tables
from dtk.compare.model import Comparison, Figure

_STATUSES = {"same": "healthy", "differs": "confirmed", "unknown": "undecided"}


def render(found: Comparison) -> str:
    """The whole page."""
    title = f"Comparison: {', '.join(variant.label for variant in found.variants)}"
    return document(title, _header(found), el("main", *_sections(found), id="main"))


def _header(found: Comparison) -> Markup:
    good = found.comparable
    badge = el("span", "COMPARABLE" if good else "NOT COMPARABLE", class_=f"badge {'fits' if good else 'unfit'}")
    first = found.variants[0].any
    data = first.manifest.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    about = f"{first.get('model.name')} on {source or first.get('data.name')}"
    if len({variant.any.batch for variant in found.variants}) == 1:
        samples, tokens = first.batch
        about += f", batch {samples} x {tokens} tokens"
    return el(
        "header",
        el(
            "div",
            el("div", badge, class_="bar"),
            el("h1", _sentence(tables.headline(found))),
            el("p", about, class_="soft"),
        ),
    )


def _sections(found: Comparison) -> list[Markup]:
    colours = [variant.label for variant in found.variants]
    by_key = {figure.key: figure for figure in found.figures}
    parts = [
        _why(found),
        _grid(found),
        _bars("Throughput", by_key.get("tokens_per_s"), colours),
        _bars("Peak memory of the fullest rank", by_key.get("peak_memory_bytes"), colours),
        _breakdown(found),
        _section("Training loss", plots.losses(found, colours)),
        _scaling(found),
        _parity(found),
        _figures(found),
        el("section", el("h2", "Runs"), _table(tables.overview(found), 1), _ids(found)),
        _notes(found),
        el("footer", "Made by dtk compare. The same as data: dtk compare with --json."),
    ]
    return [part for part in parts if part is not None]


def _why(found: Comparison) -> Markup | None:
    if not found.verdicts:
        return None
    lines = el("ul", *(el("li", f"{text}.") for text in found.verdicts), class_="plain")
    return el("section", el("h2", "Who is faster, and why"), lines)


def _grid(found: Comparison) -> Markup | None:
    if not found.places:
        return None
    return el("section", el("h2", "Strategies and batches"), _table(tables.grid(found), 1))


def _bars(title: str, figure: Figure | None, colours: Sequence[str]) -> Markup | None:
    if figure is None:
        return None
    several = any(cell.estimate and cell.estimate.low is not None for cell in figure.cells)
    told = f"{figure.definition[:1].upper()}{figure.definition[1:]}." + (" Lines: 95 % interval." if several else "")
    return el("section", el("h2", title), el("p", told, class_="soft"), plots.bars(figure, colours))


def _breakdown(found: Comparison) -> Markup | None:
    drawing = plots.breakdown(found)
    if drawing is None:
        return None
    told = el("p", "Mean over ranks and steps of the profiler's window; at the end of a bar its length.", class_="soft")
    return el("section", el("h2", "Where a step goes"), told, drawing)


def _scaling(found: Comparison) -> Markup | None:
    drawing = plots.scaling(found.scaling)
    if drawing is None:
        return None
    told = (
        "Efficiency: tokens/s of a rank over those with the fewest ranks. Weak: the global batch grows with the ranks."
    )
    shown = _table(tables.scaling(found.scaling), 2)
    return el("section", el("h2", "Over numbers of ranks"), el("p", told, class_="soft"), drawing, shown)


def _parity(found: Comparison) -> Markup | None:
    if not found.checks:
        return None
    rows = [
        el(
            "tr",
            el("td", check.title),
            el("td", el("span", tables.STATUSES[check.status], class_=f"status {_STATUSES[check.status]}")),
            el("td", check.detail),
        )
        for check in found.checks
    ]
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in ("condition", "status", "found"))))
    table = el("div", el("table", head, el("tbody", *rows)), class_="scroll")
    return el("section", el("h2", "Did they do the same work?"), table)


def _figures(found: Comparison) -> Markup | None:
    if not found.figures:
        return None
    defined = [join(el("dt", figure.title), el("dd", figure.definition)) for figure in found.figures]
    return el("section", el("h2", "Figures"), _table(tables.figures(found), 2), el("dl", *defined))


def _ids(found: Comparison) -> Markup:
    rows = [
        join(el("dt", variant.label), el("dd", *(join(el("code", run.name), " ") for run in variant.runs)))
        for variant in found.variants
    ]
    return el("dl", *rows)


def _notes(found: Comparison) -> Markup | None:
    return (
        el("section", el("h2", "Notes"), el("ul", *(el("li", note) for note in found.notes))) if found.notes else None
    )


def _section(title: str, inside: Markup | None) -> Markup | None:
    return None if inside is None else el("section", el("h2", title), inside)


def _table(rows: Sequence[Sequence[str]], names: int) -> Markup:
    """Heading first; the first columns are names, the others figures."""
    kinds = [None if n < names else "number" for n in range(len(rows[0]))]
    head = el("tr", *(el("th", name, scope="col", class_=kind) for name, kind in zip(rows[0], kinds, strict=True)))
    lines = [
        el("tr", *(el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows[1:]
    ]
    head, body = el("thead", head), el("tbody", *lines)
    return el("div", el("table", head, body), class_="scroll")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
