"""Integer arrays that are written once and memory-mapped afterwards, one file per key.

A file consists of the array, JSON metadata and its length, so that a truncated file is detected. It is written under a
temporary name and then linked: if several processes build the same key, the first one wins.
"""

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dtk.errors import DtkError

_TRAILER = struct.Struct("<Q8s")
_MAGIC = b"dtkdata1"


@dataclass(frozen=True, slots=True)
class Cached:
    """A finished array."""

    values: np.ndarray
    """One-dimensional, read-only, memory-mapped."""
    about: dict[str, Any]
    """Metadata that the builder returned."""


class Writer:
    """Appends to the array that is being built."""

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype
        self.count = 0

    def append(self, values: np.ndarray) -> None:
        """Append integers of any shape; they must fit the array's dtype."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self.count += values.size


Builder = Callable[[Writer], dict[str, Any]]


def cached(key: str, dtype: np.dtype[Any], build: Builder) -> Cached:
    """Return the array of this key, building it if it is not in the cache.

    The key consists of letters and digits, and must depend on everything that determines the content. `build` writes
    the values and returns their metadata; its exceptions propagate, except for OSError, which counts as a failure of
    the cache. DtkError if neither the cache nor the temporary folder can be written.
    """
    folders = list(_folders())
    for folder in folders:
        if (stored := _read(folder / f"{key}.bin", dtype)) is not None:
            return stored
    problem: OSError | None = None
    for folder in folders:
        try:
            path = _build(folder, key, dtype, build)
        except OSError as error:
            problem = error
            continue
        if (stored := _read(path, dtype)) is not None:
            return stored
    what = f"cannot write the token cache in {' or '.join(str(folder) for folder in folders)}"
    why = str(problem or "what was written cannot be read back")
    raise DtkError(what, why, "set XDG_CACHE_HOME to a folder with free space")


def _folders() -> Iterator[Path]:
    """Yield the folders that may hold cached arrays, best first."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # noqa: PTH117  (the specification asks to ignore relative ones)
        yield Path(chosen) / "dtk"
    else:
        with contextlib.suppress(RuntimeError):
            yield Path.home() / ".cache" / "dtk"
    user = os.getuid() if hasattr(os, "getuid") else 0
    temporary = Path(tempfile.gettempdir()) / f"dtk-{user}"
    # The temporary folder is shared by all users: files of others under this name cannot be trusted.
    if not temporary.exists() or temporary.stat().st_uid == user:
        yield temporary


def _build(folder: Path, key: str, dtype: np.dtype[Any], build: Builder) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{key}.bin"
    handle, aside = tempfile.mkstemp(prefix=f".{key[:16]}.", suffix=".partial", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            writer = Writer(file, dtype)
            about = build(writer)
            text = json.dumps({"dtype": dtype.str, "count": writer.count, "about": about}).encode()
            file.write(text + _TRAILER.pack(len(text), _MAGIC))
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            # A complete file stays: replacing it on a network file system invalidates the pages of readers elsewhere.
            if _read(path, dtype) is None:
                Path(aside).replace(path)
        except OSError:  # The file system has no hard links.
            Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)
    return path


def _read(path: Path, dtype: np.dtype[Any]) -> Cached | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size - _TRAILER.size)
            length, magic = _TRAILER.unpack(file.read(_TRAILER.size))
            if magic != _MAGIC or length > size:
                return None
            file.seek(size - _TRAILER.size - length)
            header = json.loads(file.read(length))
        count = header["count"]
        if header["dtype"] != dtype.str or size != count * dtype.itemsize + length + _TRAILER.size or not count:
            return None
        values = np.memmap(path, dtype=dtype, mode="r", shape=(count,))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    # A plain array over the same pages: indexing a memmap adds the cost of a Python call.
    return Cached(np.asarray(values).view(np.ndarray), header["about"])
