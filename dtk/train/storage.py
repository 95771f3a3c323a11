"""Errors of torch.distributed.checkpoint when a disk fails, with the facts that it omits. Knows no model and no run."""

import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

SYNC_BYTES = 64 << 20  # Less than a second of the slowest disks that hold checkpoints.


class _Synced(io.BufferedWriter):
    """Syncs as it goes: the file grows while it is written, which the live watch sees, and the last sync is short."""

    unsynced_bytes = 0

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.unsynced_bytes += count
        if self.unsynced_bytes >= SYNC_BYTES:
            self.flush()
            os.fsync(self.fileno())
            self.unsynced_bytes = 0
        return count


class _Files(FileSystem):
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        with _Synced(io.FileIO(Path(path), mode)) as stream:  # A writer only writes.
            yield stream


class Writer(FileSystemWriter):
    """Writes files; one that cannot be written fails with the operating system's error.

    torch's own archive writer fails a second time while it closes the file, and only that second error
    (`unexpected pos 704 vs 598`) would travel to the other ranks.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.fs = _Files()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part.

        Raises:
            OSError: the disk is full or fails.
        """
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            if cause is None or cause is error:
                raise
            raise cause from None


def root(error: BaseException) -> BaseException:
    """Return the error of the lowest rank that failed, without torch's wrapping."""
    while isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    return error


def in_words(error: BaseException) -> str:
    """Return one line: `no space left on device`, `RuntimeError: ...`."""
    inner = root(error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror[:1].lower() + inner.strerror[1:]
    lines = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {lines[0]}" if lines else type(inner).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, and not the files wrong."""
    return isinstance(root(error), torch.OutOfMemoryError | MemoryError)
