"""Writing of a safetensors file one tensor at a time; the library's own writer needs all tensors in memory.
Format: https://huggingface.co/docs/safetensors (8-byte header length, JSON header, raw little-endian data).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from diagnostics.contract.files import replacing

_CODES = {
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Name in the file format of each dtype that can be written."""


def write_safetensors(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[tuple[str, Tensor]],
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Write named tensors. The file is renamed to its final name only when it is complete.

    `tensors` has each name of `shapes` once, in any order; only one is in memory at a time. `dtypes` are the stored
    ones other than float32; see `stored_dtype`.

    Raises:
        OSError: the folder is full or read-only.
        ValueError: a tensor is not in `shapes`, has a different shape, is repeated or missing.
    """
    dtypes = dtypes or {}
    header, missing = _header(shapes, dtypes)
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(header)
        for name, tensor in tensors:
            if name not in missing or tuple(tensor.shape) != tuple(shapes[name]):
                raise ValueError(f"tensor {name} {tuple(tensor.shape)} was not announced, or came before")
            file.seek(len(header) + missing.pop(name))
            data = tensor.detach().to("cpu", dtypes.get(name, torch.float32)).contiguous()
            file.write(data.view(-1).view(torch.uint8).numpy().data if data.numel() else b"")
        if missing:
            raise ValueError(f"tensors that never came: {', '.join(missing)}")


def stored_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the stored dtype of a dtype: float32 for smaller floats, otherwise unchanged; ValueError if the format or
    this writer does not support it.
    """
    stored = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    if stored not in _CODES:
        raise ValueError(f"a tensor of type {dtype} cannot be written")
    return stored


def _header(shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, torch.dtype]) -> tuple[bytes, dict[str, int]]:
    """Return the bytes that precede the data, and the offset of every tensor in the data."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        offsets[name] = end
        dtype = dtypes.get(name, torch.float32)
        end += prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offsets[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, offsets
