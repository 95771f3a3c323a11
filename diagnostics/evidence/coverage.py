"""What evidence of each kind exists, and whether it could be read."""

from contextlib import suppress
from typing import Any

from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.registry import LOG, readers


def records(evidence: Evidence) -> dict[str, list[Any]]:
    """Return kind -> its handles, or the errors, stacks and facts that its files gave; each has `rank` and `file`."""
    by_kind: dict[str, list[Any]] = {reader.kind: [] for reader in readers()}
    for kind, handles in evidence.files.items():
        by_kind[kind] = [*handles]
    by_kind["stacks"] += evidence.stacks
    by_kind["error"] += evidence.errors
    counted = {fact: reader.kind for reader in readers() for fact in reader.facts}
    for fact in evidence.facts:
        by_kind[counted.get(fact.kind, LOG)].append(fact)
    return by_kind


def absent_without(kind: str) -> str:
    """Return what a rank lacks that left no file of a kind; empty where not every rank writes one."""
    reader = next((reader for reader in readers() if reader.kind == kind), None)
    return reader.per_rank if reader is not None else kind if kind == "simulation" else ""


def unused(evidence: Evidence) -> list[Problem]:
    """Why nothing of the evidence could be used; empty when something was.

    A file that a detector complained about is loaded once more, because a complaint may be about its end only.
    """
    if evidence.run is not None or evidence.errors or evidence.facts or evidence.stacks:
        return []
    why = {problem.file: problem for problem in damaged(evidence, harmless=True)}
    handles = [handle for of_kind in evidence.files.values() for handle in of_kind]
    if any(handle.file not in why for handle in handles):
        return []
    for handle in handles:
        with suppress(OSError, ValueError):
            handle.load()
            return []
    return [why[handle.file] for handle in handles]


def damaged(evidence: Evidence, harmless: bool = False) -> list[Problem]:
    """Return the problems by which something is not known; `harmless`: also those by which nothing is lost."""
    kinds = {*(reader.kind for reader in readers()), *evidence.files}
    return [p for p in evidence.problems if p.kind in kinds and (harmless or not p.harmless)]
