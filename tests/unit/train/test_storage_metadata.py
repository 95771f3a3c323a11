"""The index of a checkpoint is read as data: an honest one loads, one that names code is refused and runs nothing."""

import dataclasses
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from dtk.train import storage
from dtk.train.storage import Reader


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_honest_index_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    state = {
        "weights": torch.zeros(3, 2, dtype=torch.bfloat16),
        "step": torch.tensor(1),
        "scale": torch.tensor(2.0, dtype=torch.float64),
    }
    save(state, storage_writer=FileSystemWriter(tmp_path, single_file_per_rank=True), no_dist=True)
    ours, theirs = Reader(tmp_path).read_metadata(), FileSystemReader(tmp_path).read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data


def test_an_index_that_names_code_runs_nothing(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attack(owned)))
    with pytest.raises(ValueError, match="refused: it would execute"):
        Reader(tmp_path).read_metadata()
    assert not owned.exists()


def index_of(folder: Path) -> Metadata:
    save({"weights": torch.zeros(3)}, storage_writer=FileSystemWriter(folder), no_dist=True)
    return FileSystemReader(folder).read_metadata()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_entry_that_torch_would_unpickle_is_refused_whatever_size_it_claims(tmp_path: Path) -> None:
    index, owned, content = index_of(tmp_path), tmp_path / "owned", io.BytesIO()
    torch.save(Attack(owned), content)
    (tmp_path / "evil.bin").write_bytes(content.getvalue())
    entry = BytesStorageMetadata()
    entry.__dict__["size"] = torch.Size([3])
    index.state_dict_metadata["weights"] = entry
    index.storage_data = {MetadataIndex("weights"): _StorageInfo("evil.bin", 0, len(content.getvalue()))}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match="weights is not a tensor"):
        Reader(tmp_path).read_metadata()
    assert not owned.exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "change", [{"relative_path": "../elsewhere"}, {"relative_path": ".."}, {"transform_descriptors": ["zstd"]}]
)
def test_a_tensor_lies_in_a_file_of_the_checkpoint(tmp_path: Path, change: dict[str, object]) -> None:
    index = index_of(tmp_path)
    index.storage_data = {key: dataclasses.replace(place, **change) for key, place in index.storage_data.items()}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match=r"not a file of the checkpoint|entry that dtk does not write"):
        Reader(tmp_path).read_metadata()


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps({"a": 1}), pickle.dumps(torch.Size([1]))])
def test_a_damaged_index_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|it holds a"):
        Reader(tmp_path).read_metadata()


def test_an_index_beyond_the_limit_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".metadata").write_bytes(b"x" * 100)
    monkeypatch.setattr(storage, "MAX_BYTES", 99)
    with pytest.raises(ValueError, match="larger than"):
        Reader(tmp_path).read_metadata()
