"""How the commands that read and predict hand over what they made: on standard output, or as a file.

Knows no report; imports nothing that costs a command its start.
"""

import os
import shutil
import sys
from pathlib import Path

from dtk.errors import DtkError


def columns() -> int | None:
    """Width of the terminal that standard output is; None = it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colours() -> bool:
    """Whether standard output is a terminal whose user wants colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str) -> None:
    """Write to standard output, all of it, in the characters that it can show.

    Raises:
        DtkError: it is full, or broken in another way than by a reader that has seen enough.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        raise DtkError("cannot write to standard output", why, "redirect it to another place") from error


def write(path: Path, text: str) -> None:
    """Put a file in its place, whole or not at all.

    Raises:
        DtkError: the folder is absent, full or read-only.
    """
    from diagnostics.report.files import replace

    try:
        replace(path, text)
    except OSError as error:
        raise DtkError(f"cannot write {path}", error.strerror or str(error), "choose another file") from error
