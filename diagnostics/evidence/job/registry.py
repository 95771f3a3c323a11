"""All readers of evidence, collected from the files in `readers/`: the only list of kinds; and what each has read."""

import importlib
import pkgutil
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from diagnostics.evidence import readers as folder
from diagnostics.evidence.calls import SIMULATED, CallFile
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.reader import Reader

Unreadable = Literal["pickle", "empty", "none"]
"""A pickle that no reader recognises, an empty file, or any other file without evidence."""

RUN_FOLDERS = "dtk run folders"
LOG = "log"
_CHECKPOINT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save before its zip format.
_PICKLE = re.compile(rb"\x80[\x01-\x05]|\(?c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\([dl](?:p\d|[IVS])")


@cache
def readers() -> tuple[Reader, ...]:
    """Return all readers in the order in which they are tried."""
    names = [name for _, name, _ in pkgutil.iter_modules(folder.__path__)]
    collected: list[Reader] = [importlib.import_module(f"{folder.__name__}.{name}").READER for name in names]
    return tuple(sorted(collected, key=lambda reader: (reader.order, reader.kind)))


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of files that contain only evidence."""
    return frozenset(suffix for reader in readers() for suffix in reader.suffixes)


def call_files(evidence: Evidence) -> list[CallFile]:
    """Return all handles with calls: flight dumps, then rings, then histories of simulated ranks."""
    kinds = [*(reader.kind for reader in readers() if reader.has_calls), SIMULATED]
    return [file for kind in kinds for file in evidence.files.get(kind, ())]


def files_of_ranks(evidence: Evidence) -> list[Any]:
    """Return all handles that each belong to one rank."""
    kinds = [reader.kind for reader in readers() if reader.of_rank]
    return [handle for kind in kinds for handle in evidence.files.get(kind, ())]


def titles() -> str:
    """List the kinds of evidence that are searched for."""
    return ", ".join([*(reader.title for reader in readers() if reader.title), RUN_FOLDERS])


def reader_of(path: Path, head: bytes) -> Reader | Unreadable:
    """Return the reader of a file that begins with `head`; the suffix rules some readers out."""
    if not head:
        return "empty"
    if head.startswith((_CHECKPOINT, b"PK\x03\x04")):
        return "none"
    is_pickle = bool(_PICKLE.match(head))
    suffix = path.suffix.lower()
    for reader in readers():
        if is_pickle and reader.kind == LOG:
            break  # A pickle of protocol 0 is text.
        if suffix not in reader.not_suffixes and reader.recognise(head):
            return reader
    return "pickle" if is_pickle else "none"


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
