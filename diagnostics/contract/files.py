"""Opens untrusted files (a pipe could block forever), and replaces dtk's files atomically. Modes follow the umask."""

import datetime
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from math import inf, nan
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, cast

MOST_BYTES = 32 << 20  # Size of a record in a run folder; real ones are smaller than one MiB.
_roots: list[Path] = []


@contextmanager
def inside(root: Path) -> Iterator[None]:
    """Within the context, do not read records outside `root`: a folder may become a link after it was checked."""
    _roots.append(root.resolve())
    try:
        yield
    finally:
        _roots.pop()


def open_regular(path: str | Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading. Never blocks on a pipe or a device: the descriptor is checked before the first read.

    `follow` allows links, as for a user's file; records of a run are never links, nor leave `inside`. OSError if it
    cannot be opened, or is not a regular file.
    """
    flag_names = ("O_CLOEXEC", "O_NONBLOCK", *(() if follow else ("O_NOFOLLOW",)))
    handle = os.open(path, sum((getattr(os, name, 0) for name in flag_names), os.O_RDONLY))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        place = f"/proc/self/fd/{handle}"
        checked = not follow and bool(_roots) and os.path.exists(place)  # noqa: PTH110 - for every file
        if checked and not Path(os.readlink(place)).is_relative_to(_roots[-1]):  # noqa: PTH115 - as above
            raise OSError(errno.ELOOP, "a link leads out of the folder", str(path))
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_record(path: str | Path, most_bytes: int = MOST_BYTES, *, follow: bool = True) -> bytes:
    """Return the content of a small record; for `follow` see `open_regular`.

    OSError if it cannot be opened, or is not a regular file, ValueError if it is larger than `most_bytes`.
    """
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"larger than {most_bytes >> 20} MiB")
        return file.read(size + 1)


def kernel_text(path: Path) -> str:
    """Return the text of a kernel file (/proc, /sys); empty if it is missing or unreadable."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def kernel_fields(path: Path) -> dict[str, str]:
    """Return the `name: value` lines of a kernel file; empty if it is missing or unreadable."""
    pairs = (line.split(":", 1) for line in kernel_text(path).splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def stat_fields(process: Path) -> list[str]:
    """Return the fields of proc_pid_stat(5) in a folder of /proc from the third one on; empty if it has exited."""
    # The command's name before them may hold anything.
    return kernel_text(process / "stat").rpartition(")")[2].split()


def kernel_entries(folder: Path) -> list[Path]:
    """Return the sorted entries of a kernel folder (/proc, /sys); empty if it is missing."""
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def read_json(path: str | Path, most_bytes: int = MOST_BYTES, *, follow: bool = False) -> Any:
    """Return the JSON value in a small record; for `follow` see `open_regular`.

    OSError if it cannot be opened, or is not a regular file, ValueError if it is larger than `most_bytes`, nested too
    deeply, or not JSON.
    """
    try:
        return json.loads(read_record(path, most_bytes, follow=follow))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def table_beside(module: str) -> Any:
    """Return the plain values of the YAML file of the same name next to a module."""
    return read_table(Path(module).with_suffix(".yaml"))


def patterns_beside(module: str, key: str = "") -> dict[str, re.Pattern[str]]:
    """Return the regular expressions in the YAML file next to a module, or under its `key`; long ones are in parts."""
    table = table_beside(module)
    return {name: re.compile("".join(parts)) for name, parts in (table[key] if key else table).items()}


def read_table(path: Path) -> Any:
    """Return the plain values of a YAML file that is part of dtk. Each call returns a new copy."""
    values: dict[str, Any] = {"inf": inf, "nan": nan, "datetime": datetime}
    exec(_table(str(path)), values)  # Literals, compiled below.
    return values["table"]


@cache
def _table(path: str) -> CodeType:
    return cast("CodeType", _Compiled("table", f"{path}.table").get_code("table"))


class _Compiled(SourceFileLoader):
    """Compiles YAML into literals, which Python caches in `__pycache__` like any module.

    Parsing all tables at each start, including the import of the parser, would take 20% of it. The names end in
    `.table`, as `pause.py` and `pause.yaml` would share a cache file.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Return modification time and size of the YAML file."""
        return super().path_stats(path.removesuffix(".table"))

    def get_data(self, path: str) -> bytes:
        """Return the content of the YAML file, or of its compiled cache."""
        return super().get_data(path.removesuffix(".table"))

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        """Parse the YAML."""
        import yaml

        # The C loader is in every wheel of PyYAML; it is six times faster.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return compile(f"table = {yaml.load(data, loader)!r}", path, "exec")  # noqa: S506 - a safe one


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file next to `path` that replaces it on success, else is removed; OSError if it cannot be made."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
