"""The result of the doctor as document and as JSON for programs, and its exit code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diagnostics.contract.formatting import counted
from diagnostics.report import document as doc
from dtk.doctor.model import Status, worst
from dtk.doctor.registry import Completed

SCHEMA = "dtk.doctor/1"
FIT, UNFIT = 0, 1  # Exit codes.
STYLES: dict[Status, doc.Tone] = {"ok": "good", "warning": "warn", "failure": "bad", "not_applicable": "soft"}
MARKS = {"ok": "ok", "warning": "warning", "failure": "FAILURE", "not_applicable": "n/a"}
FULL_TABLES = 8  # Chosen: with more nodes, a node without problems takes one line.


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and its completed checks."""

    number: int
    host: str
    checks: tuple[Completed, ...]

    @property
    def status(self) -> Status:
        """Return the most severe status of the node's checks."""
        return worst(check.result.status for check in self.checks)


@dataclass(frozen=True, slots=True)
class Report:
    """All machines and the checks between them."""

    nodes: tuple[Node, ...]
    between: tuple[Completed, ...]
    seconds: float

    @property
    def status(self) -> Status:
        """Return the most severe status of all checks."""
        return worst(check.result.status for check in self.checks)

    @property
    def checks(self) -> Sequence[Completed]:
        """Return every check of every node, then those between nodes."""
        return [check for node in self.nodes for check in node.checks] + [*self.between]

    @property
    def exit_code(self) -> int:
        """Return 1 if any check failed, else 0."""
        return UNFIT if self.status == "failure" else FIT


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "schema": SCHEMA,
        "status": report.status,
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 3),
        "nodes": [
            {"node": n.number, "host": n.host, "status": n.status, "checks": list(map(as_plain, n.checks))}
            for n in report.nodes
        ],
        "between": [as_plain(check) for check in report.between],
    }


def as_plain(check: Completed) -> dict[str, Any]:
    """Convert a completed check to plain values for JSON."""
    return {"name": check.name, "topic": check.topic, **asdict(check.result), "seconds": round(check.seconds, 3)}


def document(report: Report, *, verbose: bool = False) -> doc.Document:
    """Return the document: a table for each node, the checks between nodes, and the totals.

    `verbose` includes details of passed checks, and one line for each check that does not apply.
    """
    several = len(report.nodes) > 1
    blocks: list[doc.Block] = []
    for node in report.nodes:
        title = doc.Span(f"node {node.number}: {node.host}" if several else node.host, "code")
        if node.status not in ("warning", "failure") and len(report.nodes) > FULL_TABLES and not verbose:
            text = f"{title.text}: all {len(node.checks)} checks are ok or do not apply"
            blocks.append(doc.Paragraph(doc.Span(text, "strong")))
        else:
            blocks.append(doc.Section(title, (_table(node.checks, verbose),)))
    if report.between:
        blocks.append(doc.Section("between the nodes", (_table(report.between, verbose),)))
    counts = Counter(check.result.status for check in report.checks)
    bad: tuple[Status, ...] = ("failure", "warning")
    parts = [counted(counts[status], status) for status in bad if counts[status]]
    parts += [f"{counts['ok']} ok", f"{counts['not_applicable']} not applicable"]
    where = f" on {counted(len(report.nodes), 'node')}" if several else ""
    text = f"{', '.join(parts)}{where} ({report.seconds:.1f} s)"
    total = doc.Paragraph(doc.Span(text, STYLES[report.status]))
    return doc.Document("Doctor", "", (*blocks, doc.Section("", (total,))))


def _table(checks: Sequence[Completed], verbose: bool) -> doc.Table:
    rows: list[tuple[doc.Text | doc.Cell, ...]] = []
    inapplicable: dict[str, list[Completed]] = {}
    for check in checks:
        result = check.result
        if result.status == "not_applicable" and not verbose:
            inapplicable.setdefault(result.summary, []).append(check)
            continue
        below: list[doc.Text] = []
        if verbose or result.status in ("warning", "failure"):
            below += [f"  {line}" for line in result.details]
        for remedy in result.remedies:
            below.append(doc.Span(f"  fix: {remedy.what}", "code"))
            below += [doc.Span(f"       {remedy.command}", "code")] if remedy.command else []
        mark = doc.Span(MARKS[result.status], STYLES[result.status])
        rows.append((mark, check.name, doc.Cell(result.summary, "", tuple(below))))
    for reason, alike in inapplicable.items():  # Checks that do not apply for the same reason share a row.
        names = [check.name for check in alike]
        text = reason if len(alike) == 1 else f"{reason} ({', '.join(names)})"
        name = names[0] if len(alike) == 1 else counted(len(alike), "check")
        remedies = dict.fromkeys(remedy for check in alike for remedy in check.result.remedies)
        fixes = tuple(doc.Span(f"  {remedy.what}: {remedy.command}", "soft") for remedy in remedies)
        rows.append((doc.Span(MARKS["not_applicable"], "soft"), doc.Span(name, "soft"), doc.Cell(text, "soft", fixes)))
    return doc.Table(("", "", ""), tuple(rows), 3)
