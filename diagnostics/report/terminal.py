"""The report in a terminal: the answer in the first five lines, details on request.

Everything from evidence is shown with its control characters made visible and never read as markup.
"""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Drawing

from diagnostics.contract.findings import Finding, Remedy, Status, Where
from diagnostics.contract.formatting import ranks_text
from diagnostics.evidence.model import shortened
from diagnostics.report import wording
from diagnostics.report.console import LABEL, Writer, written
from diagnostics.report.measures import memory_rows, overlap_rows, overlap_window, plan_lines
from diagnostics.report.model import Report
from diagnostics.report.words import (
    OUTCOMES,
    STATUSES,
    blame_text,
    cost_text,
    count,
    edge_notes,
    event,
    headline,
    is_suspicion,
    missing,
    others_text,
    place_text,
    ranks_cells,
    side_text,
    sides,
    undecided,
)
from diagnostics.runs.text import clean
from diagnostics.tree.evaluate import Branch

_BRIEF = 4
_LONG = 240
"""Characters of one piece of evidence without `-v`."""
_HIGH = 0.9
"""Confidence from which on nothing more needs to be recorded."""
_COLOURS = {"healthy": "bold green", "undecided": "bold yellow", "at_risk": "bold yellow", "slow": "bold yellow"}
_MARKS: dict[Status, tuple[str, str]] = {
    "confirmed": ("[x]", "bold red"),
    "undecided": ("[?]", "yellow"),
    "ruled_out": ("[ ]", "dim"),
}


def render(report: Report, *, columns: int | None, colour: bool, verbose: bool = False, page: str = "") -> str:
    """The report as text.

    Args:
        report: what to show.
        columns: width of the terminal; None = a pipe: sentences stay on one line.
        colour: with colours (ANSI).
        verbose: with the tree, all findings, evidence and measures.
        page: path of the HTML page to name at the end.
    """
    return written(
        lambda console: _Writer(console, wrap=columns is not None).report(report, verbose, page),
        columns=columns,
        colour=colour,
    )


class _Writer(Writer):
    """Writes one report to one console."""

    def report(self, report: Report, verbose: bool, page: str) -> None:
        self._answer(report)
        roots = report.root_causes
        if roots:
            self._pair(roots[0])
            self._others(report)
            self._details(roots[0], verbose)
        self._rest(report, verbose)
        if verbose:
            self._everything(report)
        for note in report.notes:
            self.line("note", note)
        if page:
            self.line("page", page)
        if not verbose and (roots or not report.healthy):
            self.line("more", "-v for the fault tree, all evidence and what was ruled out")

    def _answer(self, report: Report) -> None:
        """Outcome and cause, ranks, where, remedy, what happened."""
        first = Text(f"{OUTCOMES[report.outcome]}: ", style=_COLOURS.get(report.outcome, "bold red"))
        first.append(clean(headline(report)), style="bold")
        if not report.root_causes:
            self.text(first)
            return
        root = report.root_causes[0]
        cause = Text(f" [{clean(root.cause)}{_sure(root)}]", style="dim")
        beside = len(first) + len(cause) <= self.room() + LABEL
        self.text(first + cause if beside else first)
        self.line("blame", blame_text(root), one_line=True)
        places = sides(root)
        if places:
            suffers = set(places[0][0]) & set(root.victims)  # Nothing tells where the rank to blame stands.
            self.line("victim" if suffers else "where", _place(places[0], self.room()), one_line=True)
        fixes = wording.remedies(root)
        if fixes:
            self.line("fix", _fix(fixes[0]), "bold green")
        self.line("what", wording.summary(root))
        if not beside:
            self.line("cause", f"{root.cause}{_sure(root)}")
        if root.cost and cost_text(root.cost):
            self.line("cost", cost_text(root.cost))

    def _pair(self, root: Finding) -> None:
        """Both sides of a mismatch, beside each other where there is room."""
        places = [place for place in sides(root) if place[1].does or len(root.where) > 1][:_BRIEF]
        if len(places) < 2:
            return
        self.console.print()
        longest = max(len(place_text(where)) for _, where in places)
        beside = len(places) if self.console.width // len(places) >= max(36, longest + 3) else 1
        for start in range(0, len(places), beside):
            row = places[start : start + beside]
            table = Table.grid(padding=(0, 3), expand=self.wrap)
            for _ in row:
                table.add_column(ratio=1, overflow="fold")
            table.add_row(*(Text(_heading(ranks, where, root), style="bold") for ranks, where in row))
            table.add_row(*(Text(wording.does(where) or "-") for _, where in row))
            table.add_row(*(Text(place_text(where), style="cyan") for _, where in row))
            self.console.print(table)
        self.console.print()

    def _others(self, report: Report) -> None:
        for root in report.root_causes[1:]:
            who = f", {ranks_text(root.ranks)}" if root.ranks else ""
            cost = f", {cost_text(root.cost)}" if cost_text(root.cost) else ""
            fixes = wording.remedies(root)
            fix = f"; fix: {fixes[0].change}" if fixes else ""
            self.line("also", f"{report.title(root.cause)} [{root.cause}{_sure(root)}]{who}{cost}{fix}")

    def _details(self, root: Finding, verbose: bool) -> None:
        for item in root.evidence[: None if verbose else _BRIEF]:
            line = f":{item.line}" if item.line else ""
            detail = item.detail
            if not verbose:
                detail = shortened(wording.detail(item), _LONG)
            self.line("seen", f"{item.file}{line}: {detail}", "dim")
        if len(root.evidence) > _BRIEF and not verbose:
            self.line("", f"and {len(root.evidence) - _BRIEF} more", "dim")
        for remedy in wording.remedies(root)[1 : None if verbose else 2]:
            self.line("or", f"{remedy.change} ({remedy.why})", "green")

    def _rest(self, report: Report, verbose: bool) -> None:
        """What was ruled out, what could not be decided, and what was wrong with the evidence."""
        counts = count(report)
        for text in plan_lines(report.measures, everything=verbose):
            self.line("plan", text)
        near, others = undecided(report)
        if report.root_causes:
            texts = [f"{counts['ruled_out']} causes ruled out", f"{len(near)} of this kind undecided" if near else ""]
            self.line("rest", "; ".join(filter(None, [*texts, others_text(others)])), "dim")
        for one in [decided.finding for decided in report.findings if is_suspicion(decided.finding)][:_BRIEF]:
            who = f", {ranks_text(one.ranks)}" if one.ranks else ""
            self.line(
                "maybe",
                f"{report.title(one.cause)} [{one.cause}{_sure(one)}]{who}: {wording.summary(one)}",
                "yellow",
            )
        unsure = report.root_causes and report.root_causes[0].confidence < _HIGH
        if unsure or report.outcome == "undecided":
            for what, causes in missing(near)[: None if verbose else 1]:
                self.line("decide", f"{what} (for {', '.join(causes[:3])}{' ...' if len(causes) > 3 else ''})", "dim")
        problems = [(one.kind, text) for one in report.coverage for text in one.problems]
        for kind, text in problems[: None if verbose else _BRIEF]:
            self.line("absent" if text.startswith(("rank ", "ranks ")) else "unread", f"{kind}: {text}", "yellow")
        if len(problems) > _BRIEF and not verbose:
            self.line("", f"and {len(problems) - _BRIEF} more", "yellow")
        for kind, text in [(one.kind, text) for one in report.coverage for text in one.notes] if verbose else ():
            self.line("note", f"{kind}: {text}", "dim")

    def _everything(self, report: Report) -> None:
        for root in report.root_causes[1:]:
            self.title(f"{report.title(root.cause)} [{root.cause}{_sure(root)}]")
            self.line("blame", blame_text(root))
            for place in sides(root):
                self.line("where", side_text(*place))
            self.line("what", wording.summary(root))
            self._details(root, verbose=True)
        consequences = [one for one in report.findings if one.explained_by]
        if consequences:
            self.title("Consequences, not causes")
        for one in consequences:
            self.line("-", f"{one.finding.cause} {ranks_text(one.finding.ranks)}: {wording.summary(one.finding)}")
        self.title("Fault tree ([x] confirmed, [?] undecided, [ ] ruled out)")
        self.console.print(_drawing(report.tree))
        confirmed = [cut for cut in report.cut_sets if cut.status == "confirmed"]
        if confirmed:
            self.title("Minimal cut sets that are confirmed")
        for cut in confirmed:
            self.line("-", f"{' and '.join(cut.causes)}: {event(report, cut.tree)}")
        of_overlap = ": ".join(filter(None, ("Overlap", overlap_window(report.measures))))
        for title, rows in ((of_overlap, overlap_rows(report.measures)), ("Memory", memory_rows(report.measures))):
            if rows:
                self.title(title)
                self.console.print(_table(rows))
        near, others = undecided(report)
        if near or others:
            self.title("Undecided, and what would record what is missing")
        for what, causes in [*missing(near), *missing(others)]:
            self.line("-", f"{what} (for {', '.join(causes)})", "dim")
        if report.coverage:
            self.title("Evidence")
            header = ("kind", "ranks", "expected", "problems", "notes")
            lines = [(c.kind, *ranks_cells(c), str(len(c.problems)), str(len(c.notes))) for c in report.coverage]
            self.console.print(_table([header, *lines]))


def _sure(finding: Finding) -> str:
    return "" if finding.confidence >= 1 else f", {finding.confidence:.0%} sure"


def _fix(remedy: Remedy) -> str:
    """What to change, and what it wins; of a setting that wins no figure, why."""
    if remedy.saves:
        return f"{remedy.change} (saves {remedy.saves})"
    return f"{remedy.change} ({remedy.why})" if remedy.kind == "override" and remedy.why else remedy.change


def _place(place: tuple[tuple[int, ...], Where], room: int) -> str:
    """The first place on one line: a path too long for it loses its beginning."""
    ranks, where = place
    tail = f":{where.line}{f' in {where.function}' if where.function else ''}"
    tail += f" ({ranks_text(ranks)})" if ranks else ""
    does = f", {wording.does(where)}" if where.does else ""
    if len(where.file) + len(tail) + len(does) > room:
        does = ""
    short = max(12, room - len(tail) - len(does))
    return (where.file if len(where.file) <= short else "..." + where.file[3 - short :]) + tail + does


def _heading(ranks: tuple[int, ...], where: Where, root: Finding) -> str:
    name = ranks_text(ranks) or ("all ranks" if where.rank is None else f"rank {where.rank}")
    blamed = bool(ranks) and set(ranks) <= set(root.ranks)
    return f"{name} (to blame)" if blamed and set(root.ranks) != {w.rank for w in root.where} else name


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """Aligned columns; the first row is the heading."""
    table = Table(box=None, pad_edge=False)
    for n, name in enumerate(rows[0]):
        figures = n > 0 and all(row[n][:1].isdigit() or row[n] == "-" for row in rows[1:])
        table.add_column(Text(name), justify="right" if figures else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def _drawing(branch: Branch) -> Drawing:
    """The tree; what is ruled out as a whole, or lacks one and the same evidence, is folded into its topmost node."""
    drawing = Drawing(_node(branch), guide_style="dim")
    folded = branch.gate and (branch.status == "ruled_out" or _same_reason(branch))
    for child in () if folded else branch.children:
        drawing.children.append(_drawing(child))
    return drawing


def _same_reason(branch: Branch) -> str:
    """Why all causes below a gate are undecided, where that is the same for two and more."""
    causes = list(_causes(branch))
    reasons = {cause.reason for cause in causes}
    alike = len(causes) > 1 and len(reasons) == 1 and all(cause.status == "undecided" for cause in causes)
    return reasons.pop() if alike else ""


def _causes(branch: Branch) -> Iterator[Branch]:
    if branch.gate is None:
        yield branch
    for child in branch.children:
        yield from _causes(child)


def _node(branch: Branch) -> Text:
    mark, style = _MARKS[branch.status]
    text = Text(f"{mark} ", style=style)
    text.append(clean(branch.title), style="" if branch.status == "confirmed" else "dim")
    kind = f" ({branch.gate})" if branch.gate else f" [{clean(branch.id)}]"
    text.append(kind, style="dim")
    same = _same_reason(branch) if branch.gate else ""
    if same:
        text.append(f" - all {len(list(_causes(branch)))} causes undecided: {clean(same)}", style="dim")
        return text
    if branch.measured and (branch.gate is None or branch.status != "ruled_out"):
        text.append(f": {clean(branch.measured)}")
    if branch.reason != branch.measured and branch.reason in edge_notes(branch) and branch.status != "confirmed":
        text.append(f" - {STATUSES[branch.status]}: {clean(branch.reason)}", style="dim")
    return text
