"""Tensor parallel: the layers of a model are split over the ranks of `tp` by the role that each declares. Between
attention and feed-forward the activations are split along the sequence (`sequence_parallel`) or whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from diagnostics.contract.files import table_beside
from diagnostics.contract.mesh import Mesh
from dtk.errors import DtkError
from dtk.sharding.declared import ITEM_BYTES, Collective, Shape

if TYPE_CHECKING:
    from torch import nn

    from dtk.config.schema import Config
    from dtk.models.layers import Role
    from dtk.sharding.base import Strategy

CUT_ALONG: Mapping[Role, Mapping[str, int]] = table_beside(__file__)
"""Role -> parameter -> dimension that is sharded; all other parameters are replicated."""


def cut_model(config: Config, model: nn.Module, strategy: Strategy) -> None:
    """Shard a model on the meta device: parameters become DTensors over `tp`, layers compute on the local shards;
    DtkError if a layer with parameters does not declare how it can be sharded.
    """
    from torch import nn as layers
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from dtk.models.layers import Cut, Cuttable

    mesh, cut = strategy.device_mesh["tp"], Cut(strategy.axes["tp"], config.parallel.sequence_parallel)
    partial: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, Cuttable):
            module.cut = cut
        own = dict(module.named_parameters(recurse=False))
        role: Role | None = getattr(module, "role", None)
        if own and role is None:
            what = f"parallel.tp={cut.axis.size} cannot cut {path or type(model).__name__}"
            why = f"{type(module).__name__} does not say how it may be cut"
            raise DtkError(what, why, "build the model from dtk.models.layers, or use parallel.tp=1")
        if role == "expert" and strategy.mesh.ep > 1:
            continue  # Sharded over `ep`; their gradients are summed over `ep` and over all ranks with the same shard.
        for name, parameter in own.items():
            dimension = CUT_ALONG[role or "whole"].get(name)
            placement = Replicate() if dimension is None else Shard(dimension)
            placed = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
            module.register_parameter(name, layers.Parameter(placed, requires_grad=parameter.requires_grad))
            if dimension is None and role != "whole":
                partial.append(f"{path}.{name}")
    if cut.sequence:
        # Each rank computes their gradients from its part of the sequence only.
        strategy.partial_over_tp += partial


def declare(
    config: Config, mesh: Mesh, accumulation_steps: int, partial: Sequence[Shape], blocks: range | None = None
) -> list[Collective]:
    """Return what the ranks of a `tp` group send each other in a step.

    `partial` are local shapes of parameters whose gradients are partial sums; `blocks` a stage's (None = the model's).
    """
    if mesh.tp == 1:
        return []
    model, parallel = config.model, config.parallel
    tokens = config.train.micro_batch_size * config.data.sequence_length // mesh.cp
    item = ITEM_BYTES[config.precision.compute_dtype]
    classifies = model.architecture == "encoder"
    # Activations leave the parallel region after attention and feed-forward of each block and after the embedding, and
    # enter it before them and before the output projection; backward reverses each.
    blocks = range(model.layers) if blocks is None else blocks
    answers = blocks.stop == model.layers
    # In a mixture of experts only the layers that every token passes through are sharded.
    dense, shared = getattr(model, "dense_layers", model.layers), getattr(model, "shared_experts", 0)
    uncut = 0 if shared else sum(i >= dense for i in blocks)
    exited, entered = 2 * len(blocks) - uncut, 2 * len(blocks) - uncut + (answers and not classifies)
    embeds = int(blocks.start == 0)
    # Autocast leaves the embedding in float32.
    embedded = ITEM_BYTES["float32"] if getattr(config.strategy.on(mesh), "autocasts", False) else item
    every = config.train.activation_checkpoint_every
    again = [i for i in blocks if every and i % every == 0]
    # Recomputing a block stops before its last reduction, unless dropout after it or load balancing saves something.
    exited_again = sum(2 if getattr(model, "dropout", 0.0) or (shared and i >= dense) else 1 for i in again)
    entered_again = sum(1 if i >= dense and not shared else 2 for i in again)
    sums = exited + entered + exited_again
    size = tokens * model.width
    if parallel.sequence_parallel:
        gathers = entered + exited + entered_again + (answers and classifies)
        calls = [("all_gather", gathers, size * item), ("reduce_scatter", sums, size * item)]
        calls += [(op, embeds, size * embedded) for op in ("all_gather", "reduce_scatter")]
    else:
        calls = [("all_reduce", sums, size * item), ("all_reduce", embeds, size * embedded)]
    if answers and not classifies:
        # Parallel cross-entropy reduces the largest logit, then the sum of exponentials and the target's logit.
        gathered = [("all_gather", 1, tokens * model.vocab_size * item)]
        calls += [("all_reduce", 1, 4 * tokens), ("all_reduce", 1, 8 * tokens)] if parallel.loss_parallel else gathered
    totals = [(op, accumulation_steps * count, accumulation_steps * count * size) for op, count, size in calls]
    if elements := sum(map(prod, partial)):
        totals.append(("all_reduce", 1, ITEM_BYTES["float32"] * elements))
    return [Collective(op, "tp", count, size) for op, count, size in totals]
