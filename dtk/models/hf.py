"""Import of GPT-2 weights from a local Hugging Face folder, and export of any model to one: one parameter at a time,
and only the shard of a sharded model. Converts between dtk's names and those of GPT2LMHeadModel and LlamaForCausalLM.
Safetensors files are written one tensor at a time; the library's own writer needs all tensors in memory.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diagnostics.contract.files import replacing, table_beside
from diagnostics.contract.formatting import first_of
from dtk.config.schema import GPTConfig
from dtk.errors import Errors, refused
from dtk.models.blocks import by_head, by_part
from dtk.models.build import ModelConfig
from dtk.models.declared import fused_heads
from dtk.models.gpt import GPT
from dtk.parallel.placement import local_piece

_KEYS, _TABLE = itemgetter("modules", "sizes", "fixed"), table_beside(__file__)
_MODULES, _SIZES, _FIXED = _KEYS(_TABLE["gpt"])
_LLAMA_MODULES, _LLAMA_SIZES, _LLAMA_FIXED = _KEYS(_TABLE["llama"])
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""Hugging Face stores these as Conv1D: [in, out], where nn.Linear has [out, in]."""
_PREFIX = "transformer."
_errors = Errors(__file__)
_CODES = {
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Name in the file format of each dtype that can be written."""


def check_gpt2(config: GPTConfig, folder: str | Path) -> None:
    """Check that a folder holds weights for this model; reads config.json and the header of the weights.

    DtkError if a file is missing or damaged, the architecture or size differs, or tensors are missing.
    """
    with torch.device("meta"):
        model = GPT(config)
    with _opened(model, folder):
        pass


def load_gpt2(model: GPT, folder: str | Path) -> None:
    """Fill every parameter from `config.json` and `model.safetensors` in `folder`.

    The materialised `model` has plain or DTensor parameters; only this rank's shards are read. Names in the file may
    have the prefix `transformer.`. The folder is one that `save_pretrained` of GPT2LMHeadModel or GPT2Model, or
    `export_weights` wrote; see `check_gpt2` for errors.
    """
    with _opened(model, folder) as (file, names):
        for name, parameter in model.named_parameters():
            local, piece = local_piece(parameter)
            if local.numel() == 0:
                continue
            source = file.get_slice(names[name])
            if heads := fused_heads(model, name):
                whole = source[:]
                local.copy_(by_head(whole.T if whole.dim() > 1 else whole, heads)[piece.box])
            else:
                local.copy_(source[piece.box[::-1]].T if names[name].endswith(_TRANSPOSED) else source[piece.box])


def export_weights(
    config: ModelConfig,
    shapes: Mapping[str, Sequence[int]],
    parameters: Iterable[tuple[str, Tensor]],
    folder: Path,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Write `model.safetensors` and `config.json`; GPT in the layout of GPT2LMHeadModel, Llama of LlamaForCausalLM.

    The other architectures keep dtk's names and shapes, with their section of the configuration as config.json, so that
    `load_state_dict` accepts the file unchanged.

    Args:
        config: the model's section.
        shapes: full shape of every parameter and persistent buffer by its name in the state dict.
        parameters: (name, full tensor), each name of `shapes` once, in any order. One tensor is held at a time: a
            generator that gathers on demand keeps the whole model out of memory.
        folder: folder to create.
        dtypes: dtypes other than float32, by name.

    DtkError if the folder cannot be written, ValueError if shapes and parameters do not agree.
    """
    section: Any = config
    description = dataclasses.asdict(section)
    if isinstance(config, GPTConfig):
        end = 50256 if config.vocab_size == 50257 else None  # GPT-2's token ids, if the model has them.
        sizes = {hf_key: getattr(config, key) for hf_key, key in _SIZES.items()}
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
        architecture = {"architectures": ["GPT2LMHeadModel"], "bos_token_id": end, "eos_token_id": end}
        description = {**architecture, **_FIXED, **sizes, **dropout}
        shapes = {_PREFIX + hf_name(name): _turned(name, shape) for name, shape in shapes.items()}
        parameters = _as_gpt2(parameters, config.heads)
    elif config.architecture == "llama":  # Its shapes are the same in both.
        tokens = {"architectures": ["LlamaForCausalLM"], "bos_token_id": None, "eos_token_id": None}
        description = {**tokens, **_LLAMA_FIXED, **{key: getattr(config, ours) for key, ours in _LLAMA_SIZES.items()}}
        shapes = {llama_name(name): shape for name, shape in shapes.items()}
        parameters = ((llama_name(name), value) for name, value in parameters)
    with refused(f"cannot export to {folder}", "free space, or choose another runs folder"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        write_safetensors(folder / "model.safetensors", shapes, parameters, dtypes)


def hf_name(name: str, modules: Mapping[str, str] = _MODULES, blocks: str = "h") -> str:
    """Return Hugging Face's name of a parameter; of GPT, the default, without the prefix `transformer.`."""
    module, _, leaf = name.rpartition(".")
    if not module.startswith("blocks."):
        return f"{modules[module]}.{leaf}"
    _, index, inner = module.split(".", 2)
    return f"{blocks}.{index}.{modules[inner]}.{leaf}"


llama_name = partial(hf_name, modules=_LLAMA_MODULES, blocks="model.layers")
"""Returns Hugging Face's name of a parameter of Llama."""


def _turned(name: str, shape: Sequence[int]) -> Sequence[int]:
    return tuple(reversed(shape)) if hf_name(name).endswith(_TRANSPOSED) else shape


def _as_gpt2(parameters: Iterable[tuple[str, Tensor]], heads: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in parameters:
        if "attention.qkv." in name:
            value = by_part(value, heads)  # Free the tensor in its original form.
        yield _PREFIX + hf_name(name), value.T if hf_name(name).endswith(_TRANSPOSED) else value


@contextmanager
def _opened(model: GPT, folder: str | Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open the weights of a folder; yield the file, and the name of every parameter in it."""
    settings_file, path = (Path(folder).expanduser() / name for name in ("config.json", "model.safetensors"))
    fix = "give a local folder that save_pretrained wrote"
    with refused(f"model.pretrained={folder} has no readable config.json", fix):
        content = settings_file.read_bytes()
    with refused(f"{settings_file} is not JSON", "", ValueError):
        settings = json.loads(content)
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    _errors.refuse({"no_gpt2": kind != "gpt2"}, folder=folder, kind=str(kind))
    for hf_key, name in _SIZES.items():
        value = getattr(model.config, name)
        if (size := settings.get(hf_key)) != value:
            raise _errors("size", folder=folder, key=hf_key, size=str(size), name=name, value=value)
    for key, value in _FIXED.items():
        accepted = (value, 4 * model.config.width) if key == "n_inner" else (value,)
        if settings.get(key, value) not in accepted:
            raise _errors("variant", folder=folder, key=key, there=str(settings[key]), value=value)
    if not path.is_file():
        split = (path.parent / "model.safetensors.index.json").is_file()
        why = "its weights are split over several files" if split else "it has no weights in safetensors"
        raise _errors("no_weights", folder=folder, why=why)
    try:
        weights = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _errors("no_safetensors", path=path, why=error) from error
    with weights as file:
        yield file, _names_in(file, model, folder)


def _names_in(file: Any, model: GPT, folder: str | Path) -> dict[str, str]:
    stored = set(file.keys())
    prefix = _PREFIX if f"{_PREFIX}wte.weight" in stored else ""
    names = {name: prefix + hf_name(name) for name, _ in model.named_parameters()}
    missing = [source for source in names.values() if source not in stored]
    if missing:
        raise _errors("incomplete", folder=folder, missing=first_of(missing, 1))
    for name, parameter in model.named_parameters():
        here, there = list(_turned(name, parameter.shape)), list(file.get_slice(names[name]).get_shape())
        if here != there:
            raise _errors("shapes", folder=folder, name=names[name], there=str(there), here=str(here))
    return names


def write_safetensors(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[tuple[str, Tensor]],
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Write named tensors. The file is renamed to its final name only when it is complete.

    `tensors` has each name of `shapes` once, in any order; only one is in memory at a time. `dtypes` are the stored
    ones other than float32; see `stored_dtype`.

    OSError if the folder is full or read-only, ValueError if a tensor is not in `shapes`, has a different shape, is
    repeated or missing.
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
    """Return the dtype to store: float32 for smaller floats, else the same; ValueError if it cannot be stored."""
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
