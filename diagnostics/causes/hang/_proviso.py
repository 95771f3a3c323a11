"""Findings that hold only if ranks without a dump do not belong to a group whose members no file names."""

from msgspec.structs import replace

from diagnostics.analysis.job_state import JobState
from diagnostics.causes.declared import Texts
from diagnostics.contract.findings import Facts, Finding, Text, worded

_TEXTS = Texts(__file__)

CONFIDENCE = 0.65
"""At most, of a finding that rests on such an assumption."""


def _words(finding: Finding, facts: Facts, ranks: tuple[int, ...]) -> Text:
    text = facts.text(finding)
    return replace(text, summary=f"{text.summary} {_TEXTS.phrase('proviso', ranks=ranks)}")


def assuming(job: JobState, finding: Finding) -> Finding:
    """Return the finding, with less confidence where the members of its group are assumed."""
    ranks = tuple(sorted(job.waits.assumed))
    if not ranks or finding.status != "confirmed":
        return finding
    return replace(
        finding, confidence=min(finding.confidence, CONFIDENCE), facts=worded(_words, facts=finding.facts, ranks=ranks)
    )
