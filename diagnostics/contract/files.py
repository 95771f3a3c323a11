"""How files that others may have put there are opened (a pipe would wait forever), and how dtk's own are replaced:
readers see the old file or the new one, never half. Modes follow the umask.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 32 << 20  # Of a record of a run folder; real ones stay below one MiB.


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading. Never waits for a pipe or a device: the descriptor is checked before anything is read.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_record(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a small record.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        ValueError: it is larger than such a record.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"larger than {most_bytes >> 20} MiB")
        return file.read(size + 1)


def read_json(path: str | Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the JSON value in a small record.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        ValueError: it is larger than such a record, nested too deeply, or no JSON.
    """
    try:
        return json.loads(read_record(path, most_bytes))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def table_beside(module: str) -> Any:
    """Return the plain values of the YAML file that lies beside a module under its name: a table of dtk's own.

    Args:
        module: its `__file__`.
    """
    return read_table(Path(module).with_suffix(".yaml"))


def read_table(path: Path) -> Any:
    """Return the plain values of a YAML file that is part of dtk."""
    import yaml  # Here, as it costs commands that read no table their start.

    # The C loader is in every wheel of PyYAML; it is six times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 - a safe one


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a new empty file beside `path`; at the end it takes the place of `path`, after an exception it is removed.

    Raises:
        OSError: the folder is absent, full or read-only.
    """
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield aside
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
