"""The report as one HTML page: no network, opens from disk, works without its script."""

from diagnostics.contract.findings import EvidenceItem, Finding, Remedy
from diagnostics.contract.formatting import ranks_text
from diagnostics.report import charts, measures, wording
from diagnostics.report.document import document, part
from diagnostics.report.markup import Markup, el, join
from diagnostics.report.memory_chart import memory_chart
from diagnostics.report.model import Decided, Report
from diagnostics.report.words import (
    OUTCOMES,
    STATUSES,
    blame_text,
    cost_text,
    count,
    edge_notes,
    event,
    families,
    family,
    headline,
    others_text,
    place_text,
    ranks_cells,
    sentence,
    sides,
    undecided,
)
from diagnostics.tree.evaluate import Branch

SIDES_SHOWN = 8
CUT_SETS_SHOWN = 64


def render(report: Report) -> str:
    """The whole page."""
    return document(
        f"{OUTCOMES[report.outcome]}: {headline(report)}",
        _header(report),
        el("main", *_sections(report), id="main"),
        script=part("page.js"),
    )


def _sections(report: Report) -> list[Markup]:
    parts: list[Markup | None] = [_root(report, root, number) for number, root in enumerate(report.root_causes)]
    drawings = {"hang": _timeline, "memory": _memory, "overlap": _overlap}
    first = [kind for kind in drawings if kind in families(report)]
    parts += [drawings[kind](report) for kind in first]
    parts += [_tree(report), *(drawn(report) for kind, drawn in drawings.items() if kind not in first)]
    parts += [_causes(report), _coverage(report)]
    footer = el(
        "footer",
        "Made by dtk diagnose. Costs are ceilings, not promises; below 2 % of a step nothing is reported. "
        "The same as data: report.json beside this page, or dtk diagnose PATH --json.",
    )
    return [part for part in (*parts, footer) if part]


def _header(report: Report) -> Markup:
    counts = count(report)
    buttons = el(
        "div",
        el("button", "Dark", id="theme", type="button", hidden=True),
        " ",
        el("button", "Print", id="print", type="button", hidden=True),
    )
    badge = el("span", OUTCOMES[report.outcome], class_=f"badge {report.outcome}")
    near, others = undecided(report)
    told = f"{counts['confirmed']} confirmed, {counts['ruled_out']} ruled out"
    told += f", {len(near)} undecided" if near else ""
    told += f"; {others_text(others)}" if others else ""
    ranks = f"; {report.world_size} ranks" if report.world_size else ""
    return el(
        "header",
        el("a", "Skip to the causes", href="#main", class_="skip"),
        el(
            "div",
            el("div", badge, buttons, class_="bar"),
            el("h1", sentence(headline(report))),
            el("p", el("code", report.source), ranks, "; ", told, class_="soft"),
            *(el("p", note) for note in report.notes),
        ),
    )


def _root(report: Report, root: Finding, number: int) -> Markup:
    rows: list[tuple[str, Markup]] = [("to blame", join(blame_text(root)))]
    if cost_text(root.cost):
        rows.append(("cost", join(cost_text(root.cost))))
    if wording.measured(root):
        rows.append(("measured", join(wording.measured(root))))
    rows.append(("confidence", join(f"{root.confidence:.0%}")))
    followed = [one.finding for one in report.findings if root.cause in one.explained_by]
    if followed:
        told = "; ".join(
            report.title(one.cause) + (f" ({ranks_text(one.ranks)})" if one.ranks else "") for one in followed
        )
        rows.append(("led to", join(told)))
    fixes = el("ul", *map(_remedy, wording.remedies(root)), class_="plain") if wording.remedies(root) else None
    seen = el("ul", *map(_evidence, root.evidence), class_="plain") if root.evidence else None
    return el(
        "section",
        el(
            "h2",
            sentence(report.title(root.cause)) if number else "What happened",
            " ",
            el("code", root.cause),
        ),
        el("p", wording.summary(root)),
        _sides(root),
        el("dl", *(join(el("dt", name), el("dd", value)) for name, value in rows)),
        join(el("h3", "What mends it"), fixes) if fixes else None,
        join(el("h3", "Evidence"), seen) if seen else None,
        class_="root",
        id=f"cause-{number}",
    )


def _sides(root: Finding) -> Markup | None:
    places = sides(root)
    cards = [
        el(
            "div",
            el("strong", ranks_text(ranks) or "all ranks"),
            el("div", wording.does(where)) if where.does else None,
            el("code", place_text(where)),
            class_="side blamed" if ranks and set(ranks) <= set(root.ranks) else "side",
        )
        for ranks, where in places[:SIDES_SHOWN]
    ]
    more = el("p", f"and {len(places) - SIDES_SHOWN} more places, in report.json", class_="soft")
    return join(el("div", *cards, class_="sides"), more if len(places) > SIDES_SHOWN else None) if cards else None


def _remedy(remedy: Remedy) -> Markup:
    saves = el("div", f"saves {remedy.saves}", class_="soft") if remedy.saves else None
    told = el("div", el("code", remedy.change), el("div", remedy.why), saves)
    copy = el("button", "Copy", type="button", data_copy=remedy.change, aria_label=f"Copy {remedy.change}", hidden=True)
    return el("li", el("div", told, copy, class_="fix"))


def _evidence(item: EvidenceItem) -> Markup:
    place = item.file + (f":{item.line}" if item.line else "")
    return el("li", el("code", place), " ", item.detail, " ", el("span", f"({item.kind})", class_="soft"))


def _tree(report: Report) -> Markup:
    confirmed = [cut for cut in report.cut_sets if cut.status == "confirmed"][:CUT_SETS_SHOWN]
    sets = [el("li", el("code", " and ".join(cut.causes)), f": {event(report, cut.tree)}") for cut in confirmed]
    possible = sum(cut.status == "undecided" for cut in report.cut_sets)
    return el(
        "section",
        el(
            "div",
            el("h2", "Fault tree"),
            el("button", "Open all", id="open-all", type="button", hidden=True),
            class_="bar",
        ),
        el("p", "Confirmed branches are open; pruned ones say why. Arrow keys walk the tree.", class_="soft"),
        el("div", _branch(report.tree), class_="tree"),
        join(el("h3", "Minimal cut sets that are confirmed"), el("ul", *sets)) if sets else None,
        el("p", f"{possible} more are undecided.", class_="soft") if possible else None,
    )


def _branch(branch: Branch) -> Markup:
    status = el("span", STATUSES[branch.status], class_=f"status {branch.status}")
    notes = [*edge_notes(branch), *([f"record it: {branch.missing}"] if branch.missing else [])]
    why = el("span", ": " + "; ".join(note.removesuffix(".") for note in notes), class_="why") if notes else None
    if branch.gate is None:
        return el("div", el("div", status, " ", branch.title, " ", el("code", branch.id), why), class_="leaf")
    gate = el("span", branch.gate, class_="gate", title="all are needed" if branch.gate == "and" else "one is enough")
    summary = el("summary", status, " ", branch.title, " ", gate, why)
    return el(
        "details", summary, *map(_branch, branch.children), open=branch.status == "confirmed" or branch.id == "run"
    )


def _blamed(report: Report, kind: str) -> list[int]:
    """Ranks to mark in a drawing: those that its own kind of cause blames, unless that is everybody."""
    ranks = {rank for root in report.root_causes if family(root.cause) == kind for rank in root.ranks}
    return [] if report.world_size and len(ranks) >= report.world_size else sorted(ranks)


def _timeline(report: Report) -> Markup | None:
    position = next((root.position for root in report.root_causes if root.position is not None), None)
    blamed = _blamed(report, "hang")
    lines = measures.timeline(report.measures, blamed, position)
    if lines is None:
        return None
    title = f"Last collectives of group {lines.group}" if lines.group else "Last collectives"
    return el("section", el("h2", title), charts.timeline_table(lines, blamed, position))


def _memory(report: Report) -> Markup | None:
    blamed = _blamed(report, "memory")
    ranks = measures.memory(report.measures, blamed)
    if not ranks:
        return None
    rows = measures.memory_rows(report.measures, blamed)
    drawing = memory_chart(ranks, blamed)
    plan = [el("p", f"Against the plan: {text}.") for text in measures.plan_lines(report.measures)]
    return el("section", el("h2", "Memory"), *plan, drawing, _figures(rows))


def _overlap(report: Report) -> Markup | None:
    blamed = _blamed(report, "overlap")
    ranks = measures.overlap(report.measures, blamed)
    if not ranks:
        return None
    window = measures.overlap_window(report.measures)
    of = f"Of each rank: {window}. " if window else ""
    told = el(
        "p", f"{of}At the end of a bar: wall time, and the share of communication that compute hides.", class_="soft"
    )
    rows = measures.overlap_rows(report.measures, blamed)
    return el("section", el("h2", "Overlap"), told, charts.overlap_bars(ranks, blamed), _figures(rows))


def _figures(rows: list[tuple[str, ...]]) -> Markup:
    return el("details", el("summary", "Figures"), _table(rows[0], [[join(cell) for cell in row] for row in rows[1:]]))


def _causes(report: Report) -> Markup:
    near, others = undecided(report)
    confirmed = [one for one in report.findings if one.finding.status == "confirmed"]
    shown = [_cause(report, one) for one in (*confirmed, *near)]
    pruned = [_cause(report, one) for one in report.findings if one.finding.status == "ruled_out"]
    names = ("status", "cause", "ranks", "what was seen")
    search = el(
        "input",
        type="search",
        id="filter",
        placeholder="Filter the causes",
        aria_label="Filter the causes",
        hidden=True,
    )
    folded = el("details", el("summary", f"{len(pruned)} causes that are ruled out"), _table(names, pruned, "records"))
    open_ones = [_cause(report, one) for one in others]
    aside = el("details", el("summary", others_text(others)), _table(names, open_ones, "records"))
    tables = join(
        _table(names, shown, "records") if shown else None, aside if others else None, folded if pruned else None
    )
    return el("section", el("h2", "Every cause, and why"), search, tables, id="causes")


def _cause(report: Report, one: Decided) -> list[Markup]:
    finding = one.finding
    why = el("div", f"explained by {', '.join(one.explained_by)}", class_="soft") if one.explained_by else None
    lacks = wording.missing(finding)
    missing = el("div", f"record it: {lacks}") if lacks else None
    return [
        el("span", STATUSES[finding.status], class_=f"status {finding.status}"),
        el(
            "div",
            report.title(finding.cause),
            el("div", el("code", finding.cause), class_="soft"),
            class_="name",
        ),
        join(ranks_text(finding.ranks)),
        join(wording.summary(finding), why, missing),
    ]


def _coverage(report: Report) -> Markup | None:
    rows = []
    for one in report.coverage:
        told = [*one.problems, *(f"note: {text}" for text in one.notes)]
        problems = el("ul", *(el("li", text) for text in told), class_="plain") if told else join("-")
        rows.append([join(one.kind), join(" of ".join(ranks_cells(one)).replace("- of -", "-")), problems])
    if not rows:
        return None
    return el(
        "section", el("h2", "Evidence that was read"), _table(("kind", "ranks", "problems and notes"), rows, "records")
    )


def _table(names: tuple[str, ...], rows: list[list[Markup]], kind: str | None = None) -> Markup:
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in names)))
    body = el("tbody", *(el("tr", *(el("td", cell) for cell in row)) for row in rows))
    return el("div", el("table", head, body, class_=kind), class_="scroll")
