"""write_safetensors: what the library reads back, and complete or absent."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dtk.models.hf import write_safetensors

TENSORS = {
    "matrix": torch.arange(12.0).view(3, 4),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "turned": torch.arange(6.0).view(2, 3).T,
}
SHAPES = {name: value.shape for name, value in TENSORS.items()}


def test_the_library_reads_what_was_written_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, SHAPES, reversed(TENSORS.items()))
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], value.float()) for name, value in TENSORS.items())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    "tensors",
    [
        list(TENSORS.items())[:-1],
        [*TENSORS.items(), ("matrix", TENSORS["matrix"])],
        [*TENSORS.items(), ("unknown", torch.zeros(1))],
        [("matrix", torch.zeros(4, 3))],
    ],
)
def test_what_does_not_fit_the_announcement_leaves_no_file(
    tmp_path: Path, tensors: list[tuple[str, torch.Tensor]]
) -> None:
    with pytest.raises(ValueError, match="tensor"):
        write_safetensors(tmp_path / "model.safetensors", SHAPES, tensors)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_iterator_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def failing() -> object:
        yield "matrix", TENSORS["matrix"]
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        write_safetensors(path, SHAPES, failing())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
