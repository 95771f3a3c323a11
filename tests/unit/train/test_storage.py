import errno
import os
import traceback

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dtk.train import storage
from dtk.train.storage import Reader, Writer, in_words, is_out_of_memory, root


def failed(errors):
    """As torch wraps what ranks raised."""
    return CheckpointException("write", {rank: (error, traceback.StackSummary()) for rank, error in errors.items()})


def test_the_reason_is_the_ranks_not_torchs():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert in_words(failed({2: ValueError("later"), 1: full})) == "no space left on device"
    assert root(failed({0: failed({3: full})})) is full
    assert in_words(failed({0: RuntimeError("bad archive\nmore")})) == "RuntimeError: bad archive"
    assert in_words(EOFError()) == "EOFError"
    assert is_out_of_memory(failed({0: torch.OutOfMemoryError("CUDA out of memory")}))
    assert not is_out_of_memory(failed({0: RuntimeError("bad archive")}))


@pytest.mark.filterwarnings("ignore")
def test_what_the_disk_said_survives_torchs_archive_writer(tmp_path):
    """/dev/full refuses every byte, as a full disk does."""

    class Full(Writer):
        def write_data(self, plan, planner):
            (tmp_path / "x" / "__0_0.distcp").symlink_to("/dev/full")
            return super().write_data(plan, planner)

    for size in (10, 3_000_000):
        writer = Full(tmp_path / "x", single_file_per_rank=True, overwrite=True)
        with pytest.raises(CheckpointException) as caught:
            save({"weight": torch.zeros(size)}, storage_writer=writer, no_dist=True)
        assert in_words(caught.value) == "no space left on device"
        (tmp_path / "x" / "__0_0.distcp").unlink()


@pytest.mark.filterwarnings("ignore")
def test_a_long_file_is_synced_while_it_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, "SYNC_BYTES", 1000)
    monkeypatch.setattr(storage.os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    state = {str(number): torch.full((1000,), float(number)) for number in range(5)}
    save(state, storage_writer=Writer(tmp_path, single_file_per_rank=True), no_dist=True)
    assert len(synced) > 5 and synced[:5] == sorted(set(synced[:5]))
    fresh = {name: torch.zeros(1000) for name in state}
    load(fresh, storage_reader=Reader(tmp_path), no_dist=True)
    assert all(torch.equal(fresh[name], value) for name, value in state.items())
