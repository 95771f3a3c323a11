"""Writing a safetensors file one tensor at a time, so that a model is never whole in memory.

Format: https://huggingface.co/docs/safetensors (8-byte header length, JSON header, raw little-endian data). The
library's own writer wants all tensors at once. Reading is the library's business.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from diagnostics.contract.files import replacing

_ITEM_BYTES = 4


def write_safetensors(path: Path, shapes: Mapping[str, Sequence[int]], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write named tensors as float32. The file appears under its name only when it is complete.

    Args:
        path: the file; its folder exists.
        shapes: shape of every tensor by name; the header is made from it.
        tensors: each of those names once, in any order; one is held at a time.

    Raises:
        OSError: the folder is full or read-only.
        ValueError: a tensor that was not announced, has another shape, comes twice or never.
    """
    header, offsets = _header(shapes)
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(header)
        missing = dict(offsets)
        for name, tensor in tensors:
            if name not in missing or tuple(tensor.shape) != tuple(shapes[name]):
                raise ValueError(f"tensor {name} {tuple(tensor.shape)} was not announced, or came before")
            file.seek(len(header) + missing.pop(name))
            data = tensor.detach().to("cpu", torch.float32).contiguous()
            file.write(data.view(-1).numpy().astype("<f4", copy=False).data)
        if missing:
            raise ValueError(f"tensors that never came: {', '.join(missing)}")


def _header(shapes: Mapping[str, Sequence[int]]) -> tuple[bytes, dict[str, int]]:
    """Return the bytes that precede the data, and the offset of every tensor in the data."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        offsets[name] = end
        end += prod(shape) * _ITEM_BYTES
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offsets[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, offsets
