"""The causes that NCCL, gloo and torch name themselves when they fail: no guess, one text each."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.contract.causes import Cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence
from diagnostics.evidence.model import LogFact

_SHOWN = 8
"""Lines that a finding cites."""
_ANY_KIND = ("nccl_warn", "dist_backend_error")
"""Kinds of lines that may quote any of these texts."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or the message of an exception, in which a library names the cause."""

    rank: int | None
    file: str
    line: int
    text: str
    kind: str
    """Of the line; empty for an exception."""
    fields: Mapping[str, Any]
    """What the line or the exception names, by the groups of its pattern."""


Words = Callable[[Finding, Sequence[Line]], tuple[str, Remedy]]
"""Puts the lines into a summary and a remedy."""


def speakers(lines: Iterable[Line]) -> tuple[int, ...]:
    """Return the ranks that wrote the lines, as far as they are known."""
    return tuple(sorted({line.rank for line in lines if line.rank is not None}))


def in_logs(count: int) -> str:
    """Return `2 lines in logs`."""
    return f"{counted(count, 'line')} in logs"


def failure_cause(
    *,
    id: str,
    title: str,
    remedy: str,
    decided_from: str,
    pattern: re.Pattern[str],
    kinds: tuple[str, ...],
    words: Words,
    ranks: Callable[[Sequence[Line]], tuple[int, ...]] = speakers,
    counts: Callable[[LogFact], bool] = lambda fact: True,
    elsewhere: str = "",
) -> Cause[JobEnvironment]:
    """Return a cause that a library names in its own text.

    Args:
        id: of the cause.
        title: in words.
        remedy: for docs/causes.md.
        decided_from: for docs/causes.md.
        pattern: the text.
        kinds: kinds of log lines that are recognised as it.
        words: puts the lines into words.
        ranks: to blame for the lines; default: those that wrote them.
        counts: whether a line of one of the kinds names the cause.
        elsewhere: what to look at where the ranks' logs do not name it; empty = they always do.
    """

    def decide(job: JobEnvironment) -> list[Finding]:
        lines = list(_lines(job, pattern, kinds, counts))
        if not lines and job.spoken and not elsewhere:
            return [ruled_out(id, "No log and no exception says so.", "0 lines in logs")]
        if not lines:
            why = "No line says so." if job.spoken else "There is neither a log nor an error file."
            return [undecided(id, why, elsewhere or "the ranks' stderr")]
        items = tuple(EvidenceItem("log", line.file, line.text[:200], line.line or None) for line in lines[:_SHOWN])
        facts, blamed = worded(_text, lines=lines, words=words), ranks(lines)
        return [Finding(cause=id, status="confirmed", facts=facts, confidence=0.97, ranks=blamed, evidence=items)]

    return Cause(
        id=id,
        title=title,
        outcome="crashed",
        branch="environment.hardware",
        facts=job_environment,
        decide=decide,
        decided_from=decided_from,
        remedy=remedy,
    )


def named_cause(file: str) -> Cause[JobEnvironment]:
    """Return the cause in the table beside a module: each of its cases has a pattern and what to say of it."""
    table, path = table_beside(file), Path(file)
    cases: dict[str, dict[str, str]] = table["cases"]
    pattern = "|".join(f"(?P<{name}>{case['pattern']})" for name, case in cases.items())

    def words(finding: Finding, lines: Sequence[Line]) -> tuple[str, Remedy]:
        case = next(case for line in lines for name, case in cases.items() if line.fields.get(name))
        who = sentence(ranks_spoken(finding.ranks)) if finding.ranks else "A process"
        return case["summary"].format(who=who), Remedy("environment", case["change"], case["why"])

    return failure_cause(
        id=f"{path.parent.name}.{path.stem}",
        title=table["title"],
        remedy=table["remedy"],
        decided_from=table["decided_from"],
        pattern=re.compile(pattern),
        kinds=(table["kind"],),
        words=words,
        elsewhere=table.get("elsewhere", ""),
    )


def _text(finding: Finding, lines: Sequence[Line], words: Words) -> Text:
    summary, remedy = words(finding, lines)
    return Text(summary=summary, measured=in_logs(len(lines)), remedies=(remedy,))


def _lines(
    job: JobEnvironment, pattern: re.Pattern[str], kinds: tuple[str, ...], counts: Callable[[LogFact], bool]
) -> Iterator[Line]:
    """Yield the lines that name the cause, in logs and in exceptions."""
    for fact in job.log:
        if fact.kind in kinds:
            if counts(fact):
                yield Line(fact.rank, fact.file, fact.line, fact.text, fact.kind, fact.fields)
        elif fact.kind in _ANY_KIND and (match := pattern.search(fact.text)):
            yield Line(fact.rank, fact.file, fact.line, fact.text, fact.kind, match.groupdict())
    for error in job.errors:
        if match := pattern.search(error.message):
            yield Line(error.rank, error.file, error.line, match.group(), "", match.groupdict())
