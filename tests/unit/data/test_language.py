from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtk.config.schema import StdlibData, SyntheticData, TextData, TokensData
from dtk.data.build import build_dataset
from dtk.data.language import language_dataset
from dtk.data.sampler import sample_ids
from dtk.data.tokens import Tokens
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
        dataset = language_dataset(config, counting(total))
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
    dataset = language_dataset(SyntheticData(sequence_length=4), counting(100))
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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TextData(path="/not/here"), "no such file or folder"),
        (StdlibData(max_bytes=200), "has 20. tokens: data.sequence_length=128 needs at least 258"),
        (StdlibData(tokenizer="word"), 'unknown tokenizer "word"'),
        (StdlibData(validation_fraction=1.0), "validation_fraction=1.0"),
        (StdlibData(sequence_length=0), "sequence_length=0"),
        (TokensData(path="/not/here.bin"), "no such token file"),
        (SyntheticData(samples=1), "leave nothing to train on"),
    ],
)
def test_wrong_input_is_one_line(config: StdlibData, message: str) -> None:
    with pytest.raises(DtkError, match=message) as caught:
        build_dataset(config)
    assert "\n" not in str(caught.value)


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    config = TokensData(path=str(path), sequence_length=8, vocab_size=1000)
    dataset = build_dataset(config)
    assert dataset.train(np.array([3])).inputs.tolist() == [list(range(24, 32))]
    assert dataset.describe().keys() >= MANIFEST and "sha256_of" not in dataset.describe()
    with pytest.raises(DtkError, match="holds token id 999"):
        build_dataset(TokensData(path=str(path), sequence_length=8, vocab_size=999))


@pytest.mark.parametrize(("dtype", "size"), [("uint16", 7), ("uint32", 6), ("uint16", 0)])
def test_token_file_of_the_wrong_size(tmp_path: Path, dtype: str, size: int) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(DtkError, match=f"has {size} bytes: not a whole number of {dtype}"):
        build_dataset(TokensData(path=str(path), dtype=dtype))  # type: ignore[arg-type]


def test_a_large_token_file_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(70 << 20)  # sparse: zeros that take no room
        file.seek(-2, 2)
        file.write(np.array([500], dtype=np.uint16).tobytes())
    about = build_dataset(TokensData(path=str(path), vocab_size=501)).describe()
    assert "64 chunks" in about["sha256_of"]
    with pytest.raises(DtkError, match="holds token id 500"):
        build_dataset(TokensData(path=str(path), vocab_size=500))


def test_synthetic_is_labelled_and_a_function_of_the_id() -> None:
    config = SyntheticData(sequence_length=16, vocab_size=7, samples=1000)
    dataset = build_dataset(config)
    assert dataset.describe()["synthetic"] is True and dataset.describe().keys() >= MANIFEST
    assert dataset.train_size + dataset.validation_size == 1000
    batch = dataset.train(np.array([5, 6, 5]))
    assert torch.equal(batch.inputs[0], batch.inputs[2]) and not torch.equal(batch.inputs[0], batch.inputs[1])
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    everything = dataset.train(np.arange(dataset.train_size)).inputs
    assert set(everything.unique().tolist()) == set(range(7))
    rows = {tuple(row) for row in everything.tolist()}
    held = {tuple(row) for row in dataset.validation(np.arange(dataset.validation_size)).inputs.tolist()}
    assert not rows & held


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("vocab_size", [1000, 128_256])
def test_a_numpy_file_says_its_type(tmp_path: Path, dtype: str, vocab_size: int) -> None:
    ids = np.arange(1000, dtype=dtype)
    np.save(tmp_path / "tokens.npy", ids)
    config = TokensData(path=str(tmp_path / "tokens.npy"), sequence_length=8, vocab_size=vocab_size)
    dataset = build_dataset(config)
    assert dataset.train(np.array([1])).inputs.tolist() == [list(range(8, 16))]
    assert dataset.describe()["tokens"] == 1000
    with pytest.raises(DtkError, match=r"holds \w+ - use data.dtype=auto"):
        build_dataset(replace(config, dtype="uint16" if dtype != "uint16" else "int32"))


@pytest.mark.parametrize("vocab_size", [1000, 50_257, 128_256])
@pytest.mark.parametrize(("dtype", "fix"), [("int32", "uint32"), ("uint32", "uint32"), ("int64", "int64")])
def test_ids_wider_than_they_are_read_are_refused_with_the_right_type(
    tmp_path: Path, dtype: str, fix: str, vocab_size: int
) -> None:
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, vocab_size, 4000).astype(dtype).tofile(path)
    narrow = TokensData(path=str(path), sequence_length=8, dtype="uint16", vocab_size=vocab_size)
    with pytest.raises(DtkError, match=f"does not hold uint16 ids.*use data.dtype={fix}$"):
        build_dataset(narrow)
    right = build_dataset(replace(narrow, dtype=fix))
    assert right.train(np.array([0])).inputs.tolist() == [np.fromfile(path, dtype=dtype)[:8].tolist()]


def test_ids_of_the_right_type_are_never_taken_for_wider_ones(tmp_path: Path) -> None:
    """Neither one token over and over, nor a text in which a token stands at every second place."""
    path = tmp_path / "tokens.bin"
    for ids in (np.zeros(4000), np.tile([7, 1], 2000), np.tile([0, 9], 2000), np.arange(4000)):
        ids.astype(np.uint16).tofile(path)
        assert build_dataset(TokensData(path=str(path), sequence_length=8)).describe()["tokens"] == 4000


def test_token_files_that_are_no_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", np.zeros(100))
    with pytest.raises(DtkError, match="holds float64 of shape"):
        build_dataset(TokensData(path=str(tmp_path / "float.npy")))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'")
    with pytest.raises(DtkError, match=r"not a usable \.npy file"):
        build_dataset(TokensData(path=str(tmp_path / "cut.npy")))
    np.full(100, -100, dtype=np.int32).tofile(tmp_path / "ignored.bin")
    with pytest.raises(DtkError, match="holds token id -100"):
        build_dataset(TokensData(path=str(tmp_path / "ignored.bin"), dtype="int32"))
