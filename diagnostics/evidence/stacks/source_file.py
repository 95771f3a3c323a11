"""A program's own source file, where it is available: parsed within bounds, never run.

The path comes from evidence, so only regular Python files of a moderate size are read, and by a thread that is left
behind where the file system does not answer: it may be the very one that the job hangs on. Whether the text is still
that of the run is for the reader to say, by the time of its last change.
"""

import ast
import os
import threading
import warnings
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct

from diagnostics.contract.files import open_regular

MAX_BYTES = 512 << 10
"""Twice the longest file of trainers; of the worst text the tree takes 300 MiB and 0.8 s, which nothing interrupts."""
READ_S = 1.0  # Maximum time to wait for a file.


class Source(Struct, frozen=True, eq=False):
    """The source text of one file."""

    tree: ast.Module
    changed_s: float
    """Time of the last change, seconds since 1970."""


@lru_cache(maxsize=16)
def source(file: str) -> Source | None:
    """Return the source of a file named in a stack, or None if it does not exist here or is not Python."""
    content = _read(file) if file.endswith(".py") else None
    if content is None:
        return None
    text, changed_s = content
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Source(ast.parse(text), changed_s)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(file: str) -> tuple[bytes, float] | None:
    contents: list[tuple[bytes, float]] = []

    def read() -> None:
        with suppress(OSError, ValueError), open_regular(file) as handle:
            about = os.fstat(handle.fileno())
            if about.st_size <= MAX_BYTES:
                contents.append((handle.read(about.st_size), about.st_mtime))

    thread = threading.Thread(target=read, name="source", daemon=True)
    thread.start()
    thread.join(READ_S)
    return contents[0] if contents else None
