"""The causes that NCCL, gloo and torch name themselves when they fail: no guess, one text each."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Facts, Finding, Text
from diagnostics.contract.formatting import counted
from diagnostics.evidence.model import LogFact

_SHOWN = 8
"""Lines that a finding cites."""
_ANY_KIND = ("nccl_warn", "dist_backend_error")
"""Kinds of lines that may quote any of these texts."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line in which a library says it."""

    rank: int | None
    file: str
    line: int
    text: str
    kind: str
    """Of the line; empty for an exception."""
    fields: Mapping[str, Any]
    """What the line or the exception names, by the groups of its pattern."""


@dataclass(frozen=True, slots=True)
class NotSaid:
    """No line says it; with logs or exceptions at hand that is an answer, as the libraries always say it."""

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        if finding.status == "ruled_out":
            return Text(summary="No log and no exception says so.", measured="0 lines in logs")
        return Text(summary="There is neither a log nor an error file.", missing="the ranks' stderr")


def failure_cause(
    *,
    id: str,
    title: str,
    remedy: str,
    decided_from: str,
    pattern: re.Pattern[str],
    kinds: tuple[str, ...],
    facts: Callable[[list[Said]], tuple[Facts, tuple[int, ...]]],
    counts: Callable[[LogFact], bool] = lambda fact: True,
) -> Cause[JobEnvironment]:
    """Return a cause that a library names in its own text.

    Args:
        id: of the cause.
        title: in words.
        remedy: for docs/causes.md.
        decided_from: for docs/causes.md.
        pattern: the text.
        kinds: kinds of log lines that are recognised as it.
        facts: what the lines tell, and the ranks to blame.
        counts: whether a line of one of the kinds says it.
    """

    def decide(job: JobEnvironment) -> list[Finding]:
        said = list(_said(job, pattern, kinds, counts))
        if not said:
            return [Finding(cause=id, status="ruled_out" if job.spoken else "undecided", facts=NotSaid())]
        told, ranks = facts(said)
        items = tuple(EvidenceItem("log", one.file, one.text[:200], one.line or None) for one in said[:_SHOWN])
        return [Finding(cause=id, status="confirmed", facts=told, confidence=0.97, ranks=ranks, evidence=items)]

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


def speakers(said: Iterable[Said]) -> tuple[int, ...]:
    """Return the ranks that wrote the lines, as far as they are known."""
    return tuple(sorted({line.rank for line in said if line.rank is not None}))


def lines(count: int) -> str:
    """Return `2 lines in logs`."""
    return f"{counted(count, 'line')} in logs"


def _said(
    job: JobEnvironment, pattern: re.Pattern[str], kinds: tuple[str, ...], counts: Callable[[LogFact], bool]
) -> Iterable[Said]:
    """Return the lines that say it, in logs and in exceptions."""
    for fact in job.log:
        own = fact.kind in kinds
        if own and counts(fact):
            yield Said(fact.rank, fact.file, fact.line, fact.text, fact.kind, fact.fields)
        elif fact.kind in _ANY_KIND and not own and (match := pattern.search(fact.text)):
            yield Said(fact.rank, fact.file, fact.line, fact.text, fact.kind, match.groupdict())
    for error in job.errors:
        if match := pattern.search(error.message):
            yield Said(error.rank, error.file, error.line, match.group(), "", match.groupdict())
