"""The report as Markdown, for an issue or a pull request. What comes from evidence cannot become markup."""

import re
from collections.abc import Sequence

from diagnostics.contract.findings import Finding, Status
from diagnostics.contract.formatting import ranks_text
from diagnostics.report import wording
from diagnostics.report.measures import memory_rows, overlap_rows, overlap_window, plan_lines
from diagnostics.report.model import Report
from diagnostics.report.words import (
    OUTCOMES,
    STATUSES,
    blame_text,
    cost_text,
    count,
    edge_notes,
    headline,
    others_text,
    ranks_cells,
    sentence,
    side_text,
    sides,
    undecided,
)
from diagnostics.runs.text import clean
from diagnostics.tree.evaluate import Branch

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>&@:])")


_MARKS: dict[Status, str] = {"confirmed": "[x]", "undecided": r"\[?\]", "ruled_out": "[ ]"}


def render(report: Report) -> str:
    """The whole report."""
    parts = [f"# {OUTCOMES[report.outcome]}: {text(headline(report))}\n\nDiagnosis of {code(report.source)}.\n"]
    parts += [f"> {text(note)}\n" for note in report.notes]
    parts += [_root(report, root) for root in report.root_causes]
    near, others = undecided(report)
    counts = [f"{count(report)['ruled_out']} causes were ruled out"]
    counts.append(f"{len(near)} of this kind {'is' if len(near) == 1 else 'are'} undecided" if near else "")
    parts.append(f"{'; '.join(filter(None, [*counts, others_text(others)]))}.\n")
    of_overlap = ": ".join(filter(None, ("Overlap", overlap_window(report.measures))))
    for title, rows in ((of_overlap, overlap_rows(report.measures)), ("Memory", memory_rows(report.measures))):
        if rows:
            parts.append(f"## {title}\n\n{_table(rows)}")
    parts += [f"Memory against the plan: {text(line)}.\n" for line in plan_lines(report.measures)]
    parts.append("## Fault tree\n\n" + "".join(_branch(child, 0) for child in report.tree.children))
    parts.append(_findings(report))
    if report.coverage:
        parts.append(_coverage(report))
    return "\n".join(parts)


def text(value: str) -> str:
    """Plain text: every character that Markdown or HTML could read as markup is escaped."""
    return _SPECIAL.sub(r"\\\1", clean(value))


def code(value: str) -> str:
    """A code span around text that may hold backticks itself."""
    shown = clean(value) or " "
    ticks = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def _root(report: Report, root: Finding) -> str:
    sure = f", {root.confidence:.0%} sure" if root.confidence < 1 else ""
    lines = [
        f"## {text(sentence(report.title(root.cause)))}",
        "",
        f"{code(root.cause)}{sure}. {text(wording.summary(root))}",
        "",
    ]
    lines.append(f"- **ranks**: {text(blame_text(root))}")
    for ranks, where in sides(root):
        lines.append(f"- **where**: {code(side_text(ranks, where))}")
    if cost_text(root.cost):
        lines.append(f"- **cost**: {text(cost_text(root.cost))}")
    for remedy in wording.remedies(root):
        saves = f" Saves {text(remedy.saves)}." if remedy.saves else ""
        lines.append(f"- **fix** ({remedy.kind}): {code(remedy.change)} - {text(remedy.why)}{saves}")
    for item in root.evidence:
        place = item.file + (f":{item.line}" if item.line else "")
        lines.append(f"- **seen** ({text(item.kind)}): {code(place)} - {text(item.detail)}")
    return "\n".join(lines) + "\n"


def _branch(branch: Branch, depth: int) -> str:
    mark = _MARKS[branch.status]
    name = f"*{branch.gate}*" if branch.gate else code(branch.id)
    notes = edge_notes(branch)
    told = f": {text('; '.join(note.removesuffix('.') for note in notes))}" if notes else ""
    line = f"{'  ' * depth}- {mark} {text(branch.title)} ({name}), {STATUSES[branch.status]}{told}\n"
    return line + "".join(_branch(child, depth + 1) for child in branch.children)


def _findings(report: Report) -> str:
    rows = [("cause", "status", "ranks", "summary")]
    near, others = undecided(report)
    sure = {status: [one for one in report.findings if one.finding.status == status] for status in _MARKS}
    for one in (*sure["confirmed"], *near, *sure["ruled_out"], *others):
        finding = one.finding
        why = f" (explained by {', '.join(one.explained_by)})" if one.explained_by else ""
        rows.append(
            (finding.cause, STATUSES[finding.status] + why, ranks_text(finding.ranks), wording.summary(finding))
        )
    return f"## Every cause\n\n{_table(rows)}"


def _coverage(report: Report) -> str:
    rows = [("evidence", "ranks", "expected", "problems and notes")]
    for one in report.coverage:
        told = [*one.problems, *(f"note: {text}" for text in one.notes)]
        rows.append((one.kind, *ranks_cells(one), "; ".join(told)))
    return f"## Evidence\n\n{_table(rows)}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = ["| " + " | ".join(text(cell) or " " for cell in row) + " |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body]) + "\n"
