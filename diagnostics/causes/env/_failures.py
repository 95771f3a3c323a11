"""The causes that NCCL, torch, the kernel and others name themselves: no guess, a table of texts each."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.causes.declared import declared
from diagnostics.contract.causes import Cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import bytes_text, counted, ranks_spoken, sentence

_SHOWN = 8
"""Lines that a finding cites."""
_CONFIDENCE = 0.97
"""Of texts that can mean nothing else."""
_ANY_KIND = ("nccl_warn", "dist_backend_error")
"""Kinds of lines that may quote any of these texts."""
_Case = dict[str, str]


class _Line(Struct, frozen=True):
    """A line, or the message of an exception, in which the cause is named."""

    rank: int | None
    item: EvidenceItem
    case: _Case
    fields: dict[str, str]
    """Groups of the case's pattern; a group that ends in `_bytes` as `9.19 MiB`."""


def in_logs(count: int) -> str:
    """Return `2 lines in logs`."""
    return f"{counted(count, 'line')} in logs"


def failure_cause(file: str) -> Cause[JobEnvironment]:
    """Return the cause whose texts stand in the table beside a module; `container_limits.yaml` says in which form."""
    table, id = table_beside(file), f"env.{Path(file).stem}"
    cases = [(re.compile(case["pattern"]), case) for case in table["cases"]]

    def named(text: str, shown: str, rank: int | None, file: str, line: int) -> Iterator[_Line]:
        for pattern, case in cases:
            if match := pattern.search(text):
                fields = {
                    name: bytes_text(int(value)) if name.endswith("_bytes") and value else (value or "").strip()[:120]
                    for name, value in match.groupdict().items()
                }
                item = EvidenceItem("log", file, (shown or match.group())[:200], line or None)
                yield _Line(rank, item, case, fields)
                return

    def lines(job: JobEnvironment) -> Iterator[_Line]:
        for fact in job.log:
            if fact.kind in (*table["kinds"], *_ANY_KIND):
                yield from named(fact.text, fact.text, fact.rank, fact.file, fact.line)
        for error in job.errors:
            yield from named(error.message, "", error.rank, error.file, error.line)

    def decide(job: JobEnvironment) -> list[Finding]:
        found, elsewhere = list(lines(job)), table.get("elsewhere", "")
        if not found and job.spoken and not elsewhere:
            return [ruled_out(id, "No log and no exception says so.", "0 lines in logs")]
        if not found:
            why = "No line says so." if job.spoken else "There is neither a log nor an error file."
            return [undecided(id, why, elsewhere or "the ranks' stderr")]
        stated = {int(number) for line in found for name in table.get("ranks", ()) if (number := line.fields.get(name))}
        ranks = tuple(sorted(stated or {line.rank for line in found if line.rank is not None}))
        items = tuple(line.item for line in found[:_SHOWN])
        facts = worded(_text, first=found[0], count=len(found))
        sure = max(float(line.case.get("confidence", _CONFIDENCE)) for line in found)
        return [Finding(cause=id, status="confirmed", facts=facts, confidence=sure, ranks=ranks, evidence=items)]

    return declared(file, job_environment, decide)


def _text(finding: Finding, first: _Line, count: int) -> Text:
    case, ranks = first.case, ranks_spoken(finding.ranks)
    who = sentence(ranks) if finding.ranks else "A process"
    summary = case["summary"].format_map({**first.fields, "who": who, "ranks": ranks})
    return Text(
        summary=summary,
        measured=in_logs(count),
        remedies=(Remedy("code" if "kind" in case else "environment", case["change"], case["why"]),),
    )


CAUSE_OF = failure_cause
