"""Files of token ids: their type, their bounds, and what is recorded of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtk.config.schema import TokensData
from dtk.data.build import build_dataset
from dtk.errors import DtkError


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    config = TokensData(path=str(path), sequence_length=8, vocab_size=1000)
    dataset = build_dataset(config)
    assert dataset.train(np.array([3])).inputs.tolist() == [list(range(24, 32))]
    about = dataset.describe()
    assert (about["tokens"], about["bytes"], about["vocab_size"]) == (1000, 2000, 1000) and "sha256_of" not in about
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
