"""Reader of `.metadata`, the index of a checkpoint, that executes nothing: torch stores the index as a pickle, and the
checkpoint may come from an untrusted source. Only the classes that torch itself writes are constructed.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

from diagnostics.contract.files import read_record

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
