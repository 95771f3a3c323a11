"""The texts of a finding, for every form of the report.

No other module of the report reads the fields that they come from. The title of a cause is `Report.title`.
"""

import re

from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Where, text_of
from diagnostics.runs.text import clean

_ASIDE = re.compile(r", which (?:[^()]|\(\))*(?= \(|$)")


def summary(finding: Finding) -> str:
    """Return one or two sentences on what happened; of an undecided cause which evidence is missing."""
    return text_of(finding).summary


def measured(finding: Finding) -> str:
    """Return the value that decided the cause, `exposed 41 ms of 180 ms`; empty without one."""
    return text_of(finding).measured


def missing(finding: Finding) -> str:
    """Return the override or variable that would record what an undecided cause lacks; empty without one."""
    return text_of(finding).missing


def remedies(finding: Finding) -> tuple[Remedy, ...]:
    """Return the changes that fix the cause, the best first."""
    return text_of(finding).remedies


def does(where: Where) -> str:
    """Return what a rank does at a place, without explanations, which belong to the summary."""
    return without_aside(where.does) if where.does.startswith("stands ") else clean(where.does)


def detail(item: EvidenceItem) -> str:
    """Return what a piece of evidence shows, without explanations of stacks."""
    return without_aside(item.detail) if item.kind == "stacks" else item.detail


def without_aside(text: str) -> str:
    """Return `in user code, which leaves no frame (a.py:3)` as `in user code (a.py:3)`."""
    return clean(_ASIDE.sub("", text))
