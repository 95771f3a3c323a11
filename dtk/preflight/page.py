"""The result as one HTML page: the report on what stands, or what was proven of a job that ends."""

from diagnostics.report import html
from diagnostics.report.frame import document
from diagnostics.report.markup import Markup, el
from dtk.preflight import words
from dtk.preflight.run import Preflight

ASSUMED = (
    "Played against each other, the calls of all ranks complete: the n-th collective of a group meets the n-th of its "
    "other members with the same operation, amount, dtype, ReduceOp and root, every send has its receive, and what one "
    "rank sends is as long as the other expects."
)
LIMITS = (
    "Not covered: what happens after these steps, branches that only other data takes, and what a machine does to a "
    "run: a killed process, memory that runs out, a network that breaks."
)


def render(found: Preflight) -> str:
    """The whole page."""
    if found.verdict.report is not None:
        return html.render(found.verdict.report)
    badge = el("div", el("span", "WOULD END", class_="badge healthy"), class_="bar")
    head = el("div", badge, el("h1", words.answer(found)), el("p", el("code", found.job.source), class_="soft"))
    footer = el("footer", "Made by dtk preflight. The same as data: dtk preflight with --json.")
    return document("Preflight: would end", el("header", head), el("main", *_sections(found), footer, id="main"))


def _sections(found: Preflight) -> list[Markup]:
    rows = words.proven(found)
    table = _table(("what", "how much"), rows)
    parts = [el("section", el("h2", "What was proven"), el("p", ASSUMED), table, el("p", LIMITS))]
    if found.job.note:
        parts.append(el("section", el("h2", "What was changed"), el("p", found.job.note)))
    if found.tried:
        title = f"What if, on rank {found.tried[0].rank} alone"
        parts.append(el("section", el("h2", title), _table(words.COLUMNS, words.rows(found.tried))))
    return parts


def _table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> Markup:
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in names)))
    body = el("tbody", *(el("tr", *(el("td", cell) for cell in row)) for row in rows))
    return el("div", el("table", head, body), class_="scroll")
