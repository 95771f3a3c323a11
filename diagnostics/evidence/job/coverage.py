"""Which kinds of evidence exist, and whether they could be read."""

from contextlib import suppress
from typing import Any

from diagnostics.evidence.job.registry import LOG, readers
from diagnostics.evidence.model import Evidence, Problem


def records(evidence: Evidence) -> dict[str, list[Any]]:
    """Return kind -> its handles, or the errors, stacks and facts read from its files; each has `rank` and `file`."""
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
    """Return what a rank without a file of this kind lacks; empty if not every rank writes one."""
    reader = next((reader for reader in readers() if reader.kind == kind), None)
    return reader.per_rank if reader is not None else kind if kind == "simulation" else ""


def unused(evidence: Evidence) -> list[Problem]:
    """Return why none of the evidence could be used; empty if some was.

    A file that a detector reported is loaded again, because the problem may concern only its end.
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
    """Return the problems that lose information; if `harmless`, also those that do not."""
    kinds = {*(reader.kind for reader in readers()), *evidence.files}
    return [p for p in evidence.problems if p.kind in kinds and (harmless or not p.harmless)]
