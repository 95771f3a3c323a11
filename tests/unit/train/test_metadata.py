"""The index of a checkpoint is read as data: an honest one loads, one that names code is refused and runs nothing."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from dtk.train import metadata
from dtk.train.metadata import Reader


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
        "words": {"nested": [1, "two"]},
    }
    save(state, storage_writer=FileSystemWriter(tmp_path, single_file_per_rank=True), no_dist=True)
    ours, theirs = Reader(tmp_path).read_metadata(), FileSystemReader(tmp_path).read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data


def test_an_index_that_names_code_runs_nothing(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attack(owned)))
    with pytest.raises(ValueError, match="refused: it wants to run"):
        Reader(tmp_path).read_metadata()
    assert not owned.exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps({"a": 1}), pickle.dumps(torch.Size([1]))])
def test_a_damaged_index_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|it holds a"):
        Reader(tmp_path).read_metadata()


def test_an_index_beyond_the_limit_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".metadata").write_bytes(b"x" * 100)
    monkeypatch.setattr(metadata, "MAX_BYTES", 99)
    with pytest.raises(ValueError, match="larger than"):
        Reader(tmp_path).read_metadata()
