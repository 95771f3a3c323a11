"""Whether what was gathered could be read at all, and whether something that is evidence was left unread.

Asked after the detectors, since they load the large files. Decides nothing about the job.
"""

from typing import Any

from diagnostics.evidence.model import Evidence, Problem

KINDS = frozenset(
    {"flight", "ring", "trace", "nsys", "snapshot", "timeline", "telemetry", "error", "stacks", "log", "metrics"}
)
"""Kinds of `Problem` that are about a file which was recognised as evidence."""


def unused(evidence: Evidence) -> list[Problem]:
    """Why nothing of the evidence could be used; empty when something was.

    A file that a detector complained about is loaded once more, because a complaint may be about its end only.
    """
    if evidence.run is not None or evidence.errors or evidence.facts or evidence.stacks:
        return []
    why = {problem.file: problem for problem in evidence.problems if problem.kind in KINDS}
    handles = _handles(evidence)
    if any(handle.file not in why for handle in handles) or any(_loads(handle) for handle in handles):
        return []
    return [why[handle.file] for handle in handles]


def damaged(evidence: Evidence) -> list[Problem]:
    """Problems by which something that the job left behind is not known."""
    return [problem for problem in evidence.problems if problem.kind in KINDS and not problem.harmless]


def _handles(evidence: Evidence) -> list[Any]:
    return [
        *evidence.flight,
        *evidence.rings,
        *evidence.traces,
        *evidence.nsys,
        *evidence.snapshots,
        *evidence.timelines,
        *evidence.telemetry,
    ]


def _loads(handle: Any) -> bool:
    load = getattr(handle, "load", None)
    if load is None:
        return True
    try:
        load()
    except (OSError, ValueError):
        return False
    return True
