from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.config.schema import StdlibData, SyntheticData, TextData
from dtk.data.build import build_dataset
from dtk.data.sampler import sample_ids
from dtk.data.tokens import LanguageDataset, Tokens
from dtk.errors import DtkError

MANIFEST = {
    "name",
    "source",
    "bytes",
    "sha256",
    "tokens",
    "train_samples",
    "validation_samples",
    "vocab_size",
    "synthetic",
}


def counting(total: int) -> Tokens:
    """A stream in which every token says where it stands."""
    return Tokens(ids=np.arange(total, dtype=np.uint32), vocab_size=total, about={"source": "numbers"})


@given(length=st.integers(1, 50), total=st.integers(2, 3000), fraction=st.floats(0.0, 0.9))
@settings(deadline=None)
def test_train_and_validation_share_no_token(length: int, total: int, fraction: float) -> None:
    config = SyntheticData(sequence_length=length, validation_fraction=fraction)
    try:
        dataset = LanguageDataset(config, counting(total))
    except DtkError:
        # Refused only when there is really no room: one window each, or next to it a large held-out share.
        assert total < 2 * (length + 1) or round((total - 2) // length * fraction) >= (total - 2) // length
        return
    assert dataset.train_size >= 1 and (dataset.validation_size >= 1 or fraction == 0)
    seen = []
    for read, size in ((dataset.train, dataset.train_size), (dataset.validation, dataset.validation_size)):
        batch = read(np.arange(size))
        assert batch.inputs.shape == batch.targets.shape == (size, length)
        assert torch.equal(batch.inputs + 1, batch.targets)
        assert len(batch.inputs.unique()) == batch.inputs.numel()
        seen.append(set(batch.inputs.flatten().tolist()) | set(batch.targets.flatten().tolist()))
    assert not seen[0] & seen[1]
    assert total - len(seen[0] | seen[1]) <= length


def test_ids_outside_the_split_are_refused() -> None:
    dataset = LanguageDataset(SyntheticData(sequence_length=4), counting(100))
    with pytest.raises(IndexError):
        dataset.train(np.array([dataset.train_size]))


def test_stdlib_end_to_end() -> None:
    config = StdlibData(sequence_length=128, max_bytes=400_000)
    dataset = build_dataset(config)
    about = dataset.describe()
    assert about.keys() >= MANIFEST and about["bytes"] == 400_000 and about["synthetic"] is False
    assert (dataset.vocab_size, dataset.classes, dataset.fixed_targets) == (256, None, 128)
    assert dataset.validation_size == round(dataset.validation_size + dataset.train_size) // 20
    ids = sample_ids(1, 3, 8, dataset.train_size)
    batch = dataset.train(ids)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.is_contiguous() and batch.targets.is_contiguous()
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    again = build_dataset(config)
    assert torch.equal(again.train(ids).inputs, batch.inputs) and again.describe() == about


def test_text_is_the_users_own(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    dataset = build_dataset(TextData(path=str(tmp_path / "a.txt"), sequence_length=10))
    batch = dataset.train(np.array([0, 2]))
    assert bytes(batch.inputs[1].tolist()).decode() == text[20:30]
    assert bytes(batch.targets[1].tolist()).decode() == text[21:31]
