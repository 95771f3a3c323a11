"""What a run's configuration adds to a finding: the source line of a setting, and an injected fault. Decides nothing.

A cause that is a setting has no line of code: its line is the one in the file that set it, as the run recorded it.
"""

import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import Finding, Where, text_of
from diagnostics.contract.origins import Origins
from diagnostics.evidence.model import Evidence
from diagnostics.runs.records import read_origins

SECTIONS = ("strategy.", "nccl.")
"""Sections whose settings are a cause by themselves. A batch size and the like only happen to be of help."""


def place(evidence: Evidence, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings; confirmed ones without a location get that of the setting in their first remedy."""
    decided = list(findings)
    if evidence.run is None or not any(_open(finding) for finding in decided):
        return decided
    try:
        origins = read_origins(RunPaths(evidence.run.root).origins)
    except (OSError, ValueError):  # Without it the findings stand.
        return decided
    return [replace(finding, where=_where(finding, origins)) if _open(finding) else finding for finding in decided]


def mark_injected(evidence: Evidence, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings; in a run with an injected fault, the confirmed ones carry its name."""
    name = evidence.run.injected if evidence.run is not None else ""
    return [replace(each, injected=name) if each.status == "confirmed" and name else each for each in findings]


def _open(finding: Finding) -> bool:
    return finding.status == "confirmed" and not finding.where and bool(text_of(finding).remedies)


def _where(finding: Finding, origins: Origins) -> tuple[Where, ...]:
    """Return where a file set the first key that the first remedy overrides; empty if it was typed or is a default."""
    remedy, words = text_of(finding).remedies[0], list[str]()
    with suppress(ValueError):
        words = shlex.split(remedy.change) if remedy.kind == "override" else words
    for word in words:
        key, equals, _ = word.lstrip("+~").partition("=")
        settings = origins.keys.get(key)
        if settings and key.startswith(SECTIONS) and (equals or word.startswith("~")):
            last = settings[-1]
            file, _, line = last.by.rpartition(":")
            if last.kind == "file" and file and line.isdecimal():
                return (Where(None, Path(file).as_posix(), int(line), "", f"sets {key} to {last.written}"),)
            return ()
    return ()
