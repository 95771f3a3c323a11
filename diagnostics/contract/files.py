"""Files that are replaced whole: readers see the old one or the new one, never half. Modes follow the umask."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a new empty file beside `path`; at the end it takes the place of `path`, after an exception it is removed.

    Raises:
        OSError: the folder is absent, full or read-only.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield aside
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
