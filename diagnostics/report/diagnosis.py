"""Builds the document of a diagnosis: a first screen for the terminal, with the answer on top, and all details."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

from diagnostics.causes.registry import FAMILIES
from diagnostics.contract.findings import CERTAIN, EvidenceItem, Finding, Where, text_of
from diagnostics.contract.formatting import ranks_text, sentence
from diagnostics.evidence.model import shortened
from diagnostics.report import document as doc, drawings, overview, symptoms, wording
from diagnostics.report.measures import plan_lines
from diagnostics.report.model import Coverage, Decided, Report
from diagnostics.report.without_cause import account_asks, log_asks
from diagnostics.report.wording import WordedBranch, worded
from diagnostics.tree.outcome import account_of

_said = wording.texts_beside(__file__)
PAGES: tuple[doc.Form, ...] = ("html", "markdown")
SIDES_SHOWN = 8  # Maximum number of source locations of a cause on a page.
CUT_SETS_SHOWN = 64  # Maximum number of cut sets in the table.
_BRIEF = 4  # Maximum number of items per list (evidence, locations, problems) on the first screen.
_LONG = 240  # Maximum characters of one piece of evidence on the first screen.
_TONES: dict[str, doc.Tone] = {"healthy": "good", "undecided": "warn", "at_risk": "warn", "slow": "warn"}
_STATUSES: dict[str, doc.Tone] = {"confirmed": "bad", "undecided": "warn", "ruled_out": "soft"}
_CHARTS: dict[str, Callable[[Report], doc.Block | None]] = {
    "calls": drawings.timeline,
    "bytes": drawings.memory,
    "times": drawings.overlap,
}


def document(report: Report, *, brief: bool = False, page: str = "", files: str = "") -> doc.Document:
    """Return the document of a diagnosis.

    `brief` is only the first screen of a terminal, which ends with the path of the `page`; `files` is the diagnosed
    folder, relative to the page, to which the evidence links.
    """
    tone = _TONES.get(report.outcome, "bad")
    heading, word = overview.headline(report), overview.word(report.outcome, *(f.cause for f in report.root_causes[:1]))
    end = [doc.Field("note", note) for note in report.notes] + ([doc.Field("page", page)] if page else [])
    if brief and (report.root_causes or not report.healthy):
        end.append(doc.Field("more", _said("more")))
    return doc.Document(
        title=f"{word}: {heading}",
        badge=(word, tone),
        heading="no cause found" if report.healthy else overview.headline(report, figures=False),
        answer=(doc.Span(f"{word}: ", tone), doc.Span(heading, "strong")),
        lead=(doc.Only(("terminal",), _first_screen(report, brief)), doc.Only(PAGES, _about(report))),
        blocks=(
            *(() if brief else _sections(report, files)),
            doc.Only(("terminal",), (doc.Fields(tuple(end)),) if end else ()),
        ),
        footer=_said("footer"),
        interactive=True,
    )


def _first_screen(report: Report, brief: bool) -> tuple[doc.Block, ...]:
    """Return ranks, location, remedy and description; then evidence, open questions and unreadable files."""
    rest = _open_questions(report, brief)
    if not report.root_causes:
        return (doc.Fields(tuple(rest)),) if rest else ()
    root, *others = report.root_causes
    fixes, places = text_of(root).remedies, wording.sides(root)
    answer = [doc.Field("blame", wording.blame(root), brief=wording.blame(root))]
    if places:
        ranks, where = places[0]
        suffers = set(ranks) & set(root.victims)  # The location of the culprit is unknown.
        text, shorter = wording.place_of(ranks, where)
        answer.append(doc.Field("victim" if suffers else "where", text, brief=shorter))
    if fixes:
        best = fixes[0]  # With the saving; if there is no figure for a setting, with the reason.
        gain = f"saves {best.saves}" if best.saves else best.why if best.kind == "override" else ""
        answer.append(doc.Field("fix", best.change + (f" ({gain})" if gain else ""), "good"))
    answer.append(doc.Field("what", text_of(root).summary))
    answer.append(doc.Field("cause", f"{root.cause}{_sure(root)}", beside_answer=True))
    if wording.cost(root.cost):
        answer.append(doc.Field("cost", wording.cost(root.cost)))
    details = []
    for cause in others:
        change = f"; fix: {remedy[0].change}" if (remedy := text_of(cause).remedies) else ""
        cost = f", {wording.cost(cause.cost)}" if wording.cost(cause.cost) else ""
        whose = f", {ranks_text(cause.ranks)}" if cause.ranks else ""
        named = f"{report.title(cause.cause)} [{cause.cause}{_sure(cause)}]{whose}"
        details.append(doc.Field("also", f"{named}{cost}{change}"))
    by_line: dict[object, EvidenceItem] = {}  # A line may support a cause twice, and be the end of a traceback.
    for item in root.evidence:
        by_line.setdefault((item.file, item.line or item.detail), item)
    evidence = [*{(item.file, str(item.detail)): item for item in reversed(by_line.values())}.values()][::-1]
    for item in evidence[: _BRIEF if brief else None]:
        seen = shortened(str(item.detail), _LONG) if brief else item.detail
        details.append(doc.Field("seen", f"{_source(item)}: {seen}", "soft"))
    if brief and len(evidence) > _BRIEF:
        details.append(doc.Field("", f"and {len(evidence) - _BRIEF} more", "soft"))
    details += [doc.Field("or fix", f"{fix.change} ({fix.why})", "good") for fix in fixes[1 : 2 if brief else None]]
    several = [place for place in places if place[1].does or len(root.where) > 1][:_BRIEF]
    beside = doc.Cards(tuple(_card(root, *place) for place in several)) if len(several) > 1 else None
    return doc.present(doc.Fields(tuple(answer)), beside, doc.Fields((*details, *rest)))


def _open_questions(report: Report, brief: bool) -> list[doc.Field]:
    """Return waits, plan, counts, suspicions, what would decide the rest, and problems and notes of the evidence."""
    rows = [*symptoms.rows(report)]
    rows += [doc.Field("plan", text) for text in plan_lines(report.measures, everything=not brief)]
    related, _ = overview.undecided(report)
    if report.root_causes and not brief:
        rows.append(doc.Field("rest", _counts(report), "soft"))
    unsure = report.root_causes and report.root_causes[0].confidence < CERTAIN
    if unsure or (report.outcome == "undecided" and report.waiting is None and not report.suspicions):
        most_likely = next(iter(report.root_causes), None) or overview.first_open(report)
        own = text_of(most_likely).missing if most_likely is not None else ""
        account = None if report.root_causes else account_of(report.measures)
        own = account_asks(account) if account is not None and account.unaccounted else own
        own = own or ("" if report.root_causes else log_asks(report))
        if own:
            rows.append(doc.Field("needed", own, "soft"))
        # Evidence for other causes does not confirm the root cause, except in a hang: the calls of all ranks.
        asks = not (brief and (own or (report.root_causes and report.outcome != "hung")))
        for what, causes in overview.missing(related, report.stated)[: 1 if brief else None] if asks else ():
            named = f" (for {', '.join(causes[:3])}{' ...' if len(causes) > 3 else ''})"
            rows.append(doc.Field("needed", f"{what}{'' if brief and report.root_causes else named}", "soft"))
    problems = [
        doc.Field(*("absent", text) if text == coverage.absent else ("unread", f"{coverage.kind}: {text}"), "warn")
        for coverage in report.coverage
        for text in coverage.problems
    ]
    rows += problems[: _BRIEF if brief else None]
    if brief and len(problems) > _BRIEF:
        rows.append(doc.Field("", f"and {len(problems) - _BRIEF} more", "warn"))
    notes = [f"{coverage.kind}: {text}" for coverage in report.coverage for text in coverage.notes if not brief]
    return rows + [doc.Field("note", note, "soft") for note in notes]


def _counts(report: Report) -> str:
    related, others = map(len, overview.undecided(report))
    kinds = [f"{related} of this kind"] * bool(related) + [f"{others} of other kinds"] * bool(others)
    undecided = " and ".join(kinds) if report.root_causes else str(related + others)
    ruled_out = f"{overview.count(report)['ruled_out']} causes ruled out"
    return f"{ruled_out}; {undecided} could not be decided" if kinds else ruled_out


def _about(report: Report) -> tuple[doc.Block, ...]:
    ranks = f"; {report.world_size} ranks" if report.world_size else ""
    counts = f"{ranks}; {overview.count(report)['confirmed']} confirmed; {_counts(report)}"
    source = doc.Paragraph((doc.Span(report.source, "code"), doc.Span(counts, "soft")))
    waiting = (doc.Fields(rows),) if (rows := tuple(symptoms.rows(report))) else ()
    verdict = report.statement if report.healthy and account_of(report.measures) is None else ""
    # The heading of a page leaves the figures to the paragraph below it.
    verdict = report.figures if overview.headline(report) != overview.headline(report, figures=False) else verdict
    below = doc.Paragraph(f"{sentence(verdict)}.") if verdict else None
    return doc.present(source, overview.cards(report), below, waiting, map(doc.Paragraph, report.notes))


def _sections(report: Report, files: str) -> tuple[doc.Block, ...]:
    kinds, (related, others) = overview.families(report), overview.undecided(report)
    drawn = {name: _CHARTS[traits.chart](report) for name, traits in FAMILIES.items() if traits.chart}
    followed = tuple(
        f"{report.title(entry.finding.cause)} ({ranks_text(entry.finding.ranks) or 'no rank'}), "
        f"{entry.finding.cause}: {text_of(entry.finding).summary}"
        for entry in report.findings
        if entry.explained_by
    )
    open_ones = [*overview.missing(related), *overview.missing(others)]
    lacks = tuple(f"{what} (for {', '.join(ids)})" for what, ids in open_ones)
    record = doc.Section(_said("lacks"), (doc.Items(lacks),)) if lacks else None
    causes = [_cause(report, root, number, files) for number, root in enumerate(report.root_causes)]
    return doc.present(
        [doc.Only(PAGES, tuple(causes[:1])), *causes[1:]],
        [block for kind, block in drawn.items() if block and kind in kinds],
        doc.Section(_said("followed"), (doc.Items(followed),)) if followed else None,
        _tree(report),
        [block for kind, block in drawn.items() if block and kind not in kinds],
        doc.Only(PAGES, (_every_cause(report),)),
        doc.Only(("terminal",), doc.present(record)),
        _coverage(report.coverage),
    )


def _cause(report: Report, root: Finding, number: int, files: str) -> doc.Section:
    text, cost, places = text_of(root), wording.cost(root.cost), wording.sides(root)
    blame, confidence = wording.blame(root), f"{root.confidence:.0%}"
    rows = {"ranks": blame, "cost": cost, "measured": text.measured, "confidence": confidence}
    more = len(places) - SIDES_SHOWN
    links = [f"{files}/{quote(e.file)}" if files and e.file else "" for e in root.evidence]
    seen = [
        (doc.Span(_source(e), "code", href=link), f" {e.detail} ", doc.Span(f"({e.kind})", "soft"))
        for e, link in zip(root.evidence, links, strict=True)
    ]
    title = report.title(root.cause) if number else "What happened"
    return doc.Section(
        (f"{title} ", doc.Span(root.cause, "code")),
        doc.present(
            doc.Paragraph(text.summary),
            doc.Cards(tuple(_card(root, *place) for place in places[:SIDES_SHOWN])) if places else None,
            doc.remark(_said("more_places", more=more)) if more > 0 else None,
            doc.Fields(tuple(doc.Field(label, value) for label, value in rows.items() if value)),
            doc.Section("How to fix it", text.remedies, 3) if text.remedies else None,
            doc.Section("Evidence", (doc.Items(tuple(seen)),), 3) if seen else None,
        ),
        id=f"cause-{number}",
        kind="cause",
    )


def _card(root: Finding, ranks: tuple[int, ...], where: Where) -> doc.Card:
    name = ranks_text(ranks) or ("all ranks" if root.ranks else "source line")  # Unidentified ranks were at this line.
    marked = bool(ranks) and set(ranks) <= set(root.ranks)
    some = set(root.ranks) != {place.rank for place in root.where}
    does: tuple[doc.Text, ...] = (str(where.does),) if where.does else ()
    title = f"{name} (at fault)" if marked and some else name
    return doc.Card(title, (*does, doc.Span(wording.place(where), "code")), marked)


def _tree(report: Report) -> doc.Section:
    titles = {branch.id: branch.title for branch in report.tree.children}
    confirmed = [cut for cut in report.cut_sets if cut.status == "confirmed"][:CUT_SETS_SHOWN]
    sets = [(doc.Span(" and ".join(cut.causes), "code"), f": {titles.get(cut.tree, cut.tree)}") for cut in confirmed]
    possible = sum(cut.status == "undecided" for cut in report.cut_sets)
    others = _said("possible", count=f"{possible}{' more' if sets else ''}")
    return doc.Section(
        "Fault tree",
        doc.present(
            doc.Only(("terminal",), (doc.remark(_said("marks")),)),
            doc.on_page(doc.remark(_said("keys"))),
            doc.Tree(_node(worded(report.tree))),
            doc.Section(_said("confirmed"), (doc.Items(tuple(sets)),), 3) if sets else None,
            doc.on_page(doc.remark(others)) if possible else None,
        ),
        control="open-all",
    )


def _node(branch: WordedBranch) -> doc.Node:
    """Return a node of the drawn tree; what is ruled out or lacks the same evidence as a whole is folded."""
    is_same = branch.reason.rstrip(".").casefold() == branch.measured.rstrip(".").casefold()
    notes = [note for note in (branch.measured, "" if is_same else branch.reason) if note]
    status = branch.status.replace("_", " ")
    same, causes = _same_reason(branch)
    brief: list[str | doc.Span] = []
    if same:
        brief.append(doc.Span(_said("same_reason", causes=causes, reason=same), "soft"))
    else:
        if branch.measured and (branch.gate is None or branch.status != "ruled_out"):
            brief.append(f": {branch.measured}")
        if branch.reason != branch.measured and branch.reason in notes and branch.status != "confirmed":
            brief.append(doc.Span(f" - {status}: {branch.reason}", "soft"))
    if branch.missing:
        notes.append(f"record it: {branch.missing}")
    return doc.Node(
        mark=branch.status,
        title=branch.title,
        name=branch.gate or branch.id,
        is_gate=branch.gate is not None,
        notes=tuple(note.removesuffix(".") for note in notes),
        children=tuple(map(_node, branch.children)),
        is_open=branch.status == "confirmed" or branch.id == "run",
        brief=tuple(brief),
        folded=bool(branch.gate) and (branch.status == "ruled_out" or bool(same)),
    )


def _same_reason(branch: WordedBranch) -> tuple[str, int]:
    """Return why all causes below a gate are undecided, where that is the same for two and more, and their number."""
    causes: list[WordedBranch] = []
    open_branches = [branch] if branch.gate else []
    while open_branches:
        for child in open_branches.pop().children:
            (open_branches if child.gate else causes).append(child)
    reasons = {cause.reason for cause in causes}
    is_same = len(causes) > 1 and len(reasons) == 1 and all(cause.status == "undecided" for cause in causes)
    return (reasons.pop() if is_same else ""), len(causes)


def _every_cause(report: Report) -> doc.Section:
    related, others = overview.undecided(report)
    confirmed = [entry for entry in report.findings if entry.finding.status == "confirmed"]
    pruned = [entry for entry in report.findings if entry.finding.status == "ruled_out"]
    shown, less = ([*confirmed, *related], []) if not report.root_causes else (confirmed, related)
    first, *folded = (_causes(report, causes) for causes in (shown, less, pruned, others))
    kinds = (_said("same_kind", count=len(less)), _said("ruled_out", count=len(pruned)))
    titles = (*kinds, overview.others_text(others))
    return doc.Section(
        "Every cause, and why",
        doc.present(first, [doc.Fold(title, (table,)) for title, table in zip(titles, folded, strict=True) if table]),
        id="causes",
        control="filter",
    )


def _causes(report: Report, causes: Sequence[Decided]) -> doc.Table | None:
    rows = []
    for decided in causes:
        finding, by = decided.finding, decided.explained_by
        lacks = text_of(finding).missing
        below: list[doc.Text] = [doc.Span(f"explained by {', '.join(by)}", "soft")] if by else []
        below += [f"record it: {lacks}"] if lacks else []
        rows.append(
            (
                doc.Span(
                    "suspected" if finding.suspected else finding.verdict.replace("_", " "), _STATUSES[finding.verdict]
                ),
                doc.Cell(report.title(finding.cause), below=(doc.Span(finding.cause, "code"),)),
                ranks_text(finding.ranks),
                doc.Cell(text_of(finding).summary, below=tuple(below)),
            )
        )
    return doc.Table(("status", "cause", "ranks", "what was seen"), tuple(rows), 4, "records") if rows else None


def _coverage(coverage: Sequence[Coverage]) -> doc.Section | None:
    rows, counts = [], []
    for entry in coverage:
        notes = [*entry.problems, *(f"note: {text}" for text in entry.notes)] or ["-"]
        expected = max(entry.ranks_present, entry.ranks_expected)
        cells = (str(entry.ranks_present), str(expected)) if expected else ("-", "-")
        rows.append((entry.kind, *cells, doc.Cell(notes[0], below=tuple(notes[1:]))))
        counts.append((entry.kind, *cells, str(len(entry.problems)), str(len(entry.notes))))
    if not rows:
        return None
    heading = ("kind", "ranks", "expected")
    full = doc.Table((*heading, "problems, notes"), tuple(rows), 4)
    brief = doc.Table((*heading, "problems", "notes"), tuple(counts))
    return doc.Section("Evidence that was read", (doc.Only(PAGES, (full,)), doc.Only(("terminal",), (brief,))))


def _sure(finding: Finding) -> str:
    return ", certain" if finding.confidence >= 1 else f", {finding.confidence:.0%} sure"


def _source(item: EvidenceItem) -> str:
    return item.file + (f":{item.line}" if item.line else "")
