"""JSON lines files, written on the writer's thread."""

import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dtk.record.guard import Writer


class JsonLines:
    """Appends records to a file, one per line; after a full disk it continues on a new line."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self.path = path
        self._writer = writer
        self._file: int | None = None
        self._torn = False

    def append(self, *records: Mapping[str, Any]) -> None:
        """Queue records (JSON values; others become strings). Takes microseconds and never raises."""
        self._writer.submit(self.path.parent.name + "/" + self.path.name, lambda: self.write(records))

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write on the calling thread; OSError if the disk is full or read-only. The next record ends a cut one."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        text = "".join(json.dumps(record, default=str) + "\n" for record in records)
        data = (b"\n" if self._torn else b"") + text.encode()
        written = os.write(self._file, data)
        self._torn = written < len(data) and (written > 0 or self._torn)
        if written < len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
