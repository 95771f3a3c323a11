"""The evidence found, by kind and rank, and its problems. Ranks without evidence are named."""

from collections.abc import Collection
from typing import Any

from diagnostics.contract.formatting import ranks_text
from diagnostics.evidence.job.coverage import absent_without, records
from diagnostics.evidence.model import Evidence
from diagnostics.report.model import Coverage

PROBLEMS = 200  # Problems and notes listed per kind; the rest are counted.


def coverage(evidence: Evidence, world_size: int) -> tuple[Coverage, ...]:
    """Return one line per kind of evidence that was found or had a problem."""
    by_kind: dict[str, Collection[Any]] = {**records(evidence)}
    unread = {problem.file for problem in evidence.problems if problem.unread}
    ranks = {
        kind: evidence.inside.get(kind)
        or {record.rank for record in kept if record.rank is not None and record.file not in unread}
        for kind, kept in by_kind.items()
    }
    by_kind["heartbeat"] = ranks["heartbeat"] = set(evidence.run.heartbeats) if evidence.run else set()
    problems: dict[str, list[str]] = {kind: [] for kind in ranks}
    notes: dict[str, list[str]] = {}
    for problem in sorted(evidence.problems, key=lambda problem: (problem.file, problem.what)):
        text = f"{problem.file}: {problem.what}" if problem.file else problem.what
        problems.setdefault(problem.kind, [])
        (notes.setdefault(problem.kind, []) if problem.harmless else problems[problem.kind]).append(text)
    kinds = [kind for kind in problems if by_kind.get(kind) or problems[kind] or kind in notes]
    return tuple(_line(kind, ranks.get(kind, set()), problems[kind], notes.get(kind, []), world_size) for kind in kinds)


def _line(kind: str, present: set[int], problems: list[str], notes: list[str], world_size: int) -> Coverage:
    expected = len(present)
    lines, text = list(problems), ""
    if (what := absent_without(kind)) and present:
        expected = max(world_size, len(present))
        absent = sorted(set(range(world_size)) - present)
        if absent:
            text = f"{ranks_text(absent)}: no {what}"
            lines.insert(0, text)
    return Coverage(kind, len(present), expected, _cut(lines), _cut(notes), text)


def _cut(lines: list[str]) -> tuple[str, ...]:
    return tuple(lines) if len(lines) <= PROBLEMS else (*lines[:PROBLEMS], f"and {len(lines) - PROBLEMS} more")
