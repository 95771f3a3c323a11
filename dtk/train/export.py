"""Export of the trained weights as safetensors, gathered tensor by tensor: no rank holds the whole model."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.formatting import typed
from dtk.config.schema import Config
from dtk.models.hf import export_weights, stored_dtype
from dtk.parallel.context import Context
from dtk.parallel.placement import local_piece, replica
from dtk.parallel.regions import communication, region
from dtk.sharding.base import Strategy
from dtk.train.progress import print_line


def export(config: Config, model: nn.Module, paths: RunPaths, context: Context, strategy: Strategy) -> None:
    """Write `export/model.safetensors` and `config.json`; every rank must call it."""
    with region("export"):
        # Parameters and persistent buffers, all names that a strict `load_state_dict` needs; extra state may vary.
        state = {k: v for k, v in strategy.outline(model).items() if isinstance(v, Tensor)}
        entries = _entries(state, context)
        parameters = model.state_dict(keep_vars=True)
        tensors = _gathered(state, context, entries, lambda name: strategy.stored(parameters[name]))
        if context.rank == 0:
            shapes = {name: entry.shape for name, entry in entries.items()}
            dtypes = {name: entry.dtype for name, entry in entries.items()}
            export_weights(config.model, shapes, tensors, paths.export, dtypes)
            if config.model.architecture == "custom" and config.model.path is not None:
                model.config.to_json_file(paths.export / "config.json")  # type: ignore[operator, union-attr]
            print_line(f"weights exported to {typed(paths.export)}")
        else:
            deque(tensors, maxlen=0)  # Other ranks only take part in each gather.


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: torch.dtype
    """The dtype in which it is stored."""
    holder: int
    """The first rank of the first pipeline that holds it: rank 0 unless the model is split into stages."""


def _entries(state: Mapping[str, Tensor], context: Context) -> dict[str, _Entry]:
    """Return every tensor of the whole model by name, in stage order; the same on every rank."""
    pipeline = context.mesh.group("pp", 0)
    holder = pipeline[context.mesh.index("pp", context.rank)]
    own = {name: _Entry(tuple(value.shape), stored_dtype(value.dtype), holder) for name, value in state.items()}
    if len(pipeline) == 1:
        return own
    of_rank: list[dict[str, _Entry]] = [{} for _ in range(context.world_size)]
    dist.all_gather_object(of_rank, own, group=context.control)
    entries: dict[str, _Entry] = {}
    for rank in pipeline:
        for name, entry in of_rank[rank].items():
            entries.setdefault(name, entry)
    return entries


def _gathered(
    state: Mapping[str, Tensor], context: Context, entries: Mapping[str, _Entry], stored: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each whole tensor on the CPU, in the same order on every rank; rank 0 receives those of other stages."""
    for name, entry in entries.items():
        value = state.get(name)
        if isinstance(value, DTensor):
            value = _put_together(value)
        elif value is not None and value.is_meta:
            value = stored(name)
        whole = torch.empty(entry.shape, dtype=entry.dtype) if value is None else value.to("cpu", entry.dtype)
        if entry.holder != 0 and context.rank == entry.holder:
            dist.send(whole.contiguous(), 0, group=context.control)
        elif entry.holder != 0 and context.rank == 0:
            dist.recv(whole, entry.holder, group=context.control)
        yield name, whole


def _put_together(value: DTensor) -> Tensor:
    mesh, size = value.device_mesh, value.numel() * value.element_size()
    if mesh.ndim == 1:
        with communication("all_gather", size, "dp_shard"):
            return value.full_tensor()
    # `full_tensor` needs two gathers for a tensor that was sharded twice along a dimension, and is wrong for uneven
    # shards (torch 2.13). Therefore the pieces are summed at their offsets; of replicas only the first contributes.
    local, piece = local_piece(value)
    whole = torch.zeros(value.shape, dtype=value.dtype, device=local.device)
    if replica(value)[0] == 0:
        whole[piece.box] = local
    for dimension, name in enumerate(mesh.mesh_dim_names or ()):
        with communication("all_reduce", size, name):
            dist.all_reduce(whole.view(torch.uint8).view(-1), group=mesh.get_group(dimension))
    return whole
