"""All readers of evidence, collected from the files in `readers/`: the only list of kinds."""

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from diagnostics.evidence import readers as folder
from diagnostics.evidence.calls import SIMULATED, CallFile
from diagnostics.evidence.model import Evidence
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
