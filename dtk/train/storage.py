"""Files of torch.distributed.checkpoint: errors with the facts that it omits, and an index that is read without
executing it: torch stores `.metadata` as a pickle, and the checkpoint may come from an untrusted source. Only classes
that torch itself writes are constructed.
"""

import io
import os
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from diagnostics.contract.files import read_record
from diagnostics.evidence import endings
from dtk.errors import DtkError
from dtk.parallel.tiers import Tier

SYNC_BYTES = 64 << 20  # Takes less than a second on the slowest disks that hold checkpoints.
MAX_BYTES = 1 << 30  # Size limit of the index; for 100,000 tensors on 1,000 ranks it has about 100 MB.
_DCP = {
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
    "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
}  # fmt: skip
_OTHERS = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")),
}  # fmt: skip


class _Synced(io.BufferedWriter):
    """A file that is synced while it is written, so that the live watch sees it grow and the last sync is short."""

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
    """Writes files; a failed write raises the error of the operating system.

    torch's own archive writer fails a second time while it closes the file, and only that second error (`unexpected pos
    704 vs 598`) would reach the other ranks.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.fs = _Files()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part; OSError if the disk is full or fails, DtkError if states in files cannot be read."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError | DtkError):
                cause = cause.__cause__ or cause.__context__
            if cause is None or cause is error:
                raise
            raise cause from None


class PagedPlanner(DefaultSavePlanner):
    """Reads tensors of a tier's files by explicit reads: a failed disk is an error there, and a signal in a mapping."""

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self.tier = tier

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return this rank's part of an entry; DtkError if the disk of the tier no longer gives it."""
        part = super().lookup_object(index)
        return self.tier.in_memory(part) if isinstance(part, torch.Tensor) else part


def root(error: BaseException) -> BaseException:
    """Return the error of the lowest failed rank, without torch's wrapping."""
    while isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    return error


def in_words(error: BaseException) -> str:
    """Return the error as one line: `no space left on device`, `RuntimeError: ...`."""
    inner = root(error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror[:1].lower() + inner.strerror[1:]
    if isinstance(inner, DtkError):
        return str(inner)
    lines = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {lines[0]}" if lines else type(inner).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that memory ran out, rather than that the files are wrong."""
    return endings.is_out_of_memory(root(error))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the index; ValueError if the pickle names anything else."""
        if module == dcp.__name__ and name in _DCP:
            return getattr(dcp, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        raise ValueError(f"refused: it would execute {module}.{name}")


class Reader(FileSystemReader):
    """A reader of untrusted checkpoints."""

    def read_metadata(self, *arguments: Any, **keywords: Any) -> Metadata:
        """Read the index; OSError if unreadable, ValueError if it is too large, damaged or has a foreign class."""
        path = Path(self.path) / ".metadata"
        try:
            index = _Unpickler(io.BytesIO(read_record(path, MAX_BYTES, follow=False))).load()
        except (OSError, ValueError):
            raise
        except Exception as error:
            raise ValueError(f"damaged: {error or type(error).__name__}") from error
        if not isinstance(index, Metadata):
            raise ValueError(f"it holds a {type(index).__name__}")
        # An entry that is not a tensor in a file of the checkpoint: torch would unpickle it.
        entries, places = index.state_dict_metadata, index.storage_data
        if not isinstance(entries, dict) or not isinstance(places, dict):
            raise ValueError("it lists no tensors")
        for key, entry in entries.items():
            if type(entry) is not dcp.TensorStorageMetadata:
                raise ValueError(f"refused: {key} is not a tensor")
        for place in places.values():
            if type(place) is not _StorageInfo or place.transform_descriptors:
                raise ValueError("it has a storage entry that dtk does not write")
            if not isinstance(name := place.relative_path, str) or Path(name).name != name or name == "..":
                raise ValueError(f"refused: {name} is not a file of the checkpoint")
        index.storage_meta = index.storage_meta or dcp.StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index
