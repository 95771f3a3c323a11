"""Expert parallel: the experts of each block are split over the ranks of `ep`, which train on different samples and
send each other tokens by all_to_all (Lepikhin et al. 2020, GShard). The strategy handles all other parameters as usual.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from dtk.sharding.declared import ITEM_BYTES, Collective

if TYPE_CHECKING:
    from torch import nn

    from diagnostics.contract.mesh import Mesh
    from dtk.config.schema import Config
    from dtk.sharding.base import Strategy


def cut_model(model: nn.Module, strategy: Strategy) -> None:
    """Split the experts of a model on the meta device: parameters become DTensors over `ep`."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn import Parameter

    from dtk.models.moe import Experts, MixtureMLP

    for module in model.modules():
        if isinstance(module, MixtureMLP):
            module.axis = strategy.axes["ep"]
        elif isinstance(module, Experts):
            for name, whole in list(module.named_parameters()):
                placed = distribute_tensor(whole.detach(), strategy.expert_mesh["ep"], [Shard(0)], src_data_rank=None)
                module.register_parameter(name, Parameter(placed, requires_grad=whole.requires_grad))


def declare(config: Config, mesh: Mesh, accumulation_steps: int, blocks: range | None = None) -> list[Collective]:
    """Return what the ranks of an `ep` group send each other in a step, including the collectives of load balancing.

    An all_to_all counts the rows of the rank's own tokens, sent or returned, including those it sends to itself. How
    many rows it receives depends on routing, unless a capacity fixes it; summed over all ranks both are the same.
    Experts are balanced over whole sequences: the loads are summed over cp, and over tp. `blocks` are those of a
    pipeline stage; None = the whole model.
    """
    model, every = config.model, config.train.activation_checkpoint_every
    if model.architecture != "moe":
        return []
    blocks = range(model.dense_layers, model.layers) if blocks is None else blocks
    blocks = range(max(blocks.start, model.dense_layers), blocks.stop)
    recomputed = sum(i % every == 0 for i in blocks) if every else 0
    sums = accumulation_steps * (2 * len(blocks) + recomputed)
    size = 2 * 4 * config.train.micro_batch_size * model.experts
    declared = [Collective("all_reduce", name, sums, sums * size) for name in ("cp", "tp") if mesh.size(name) > 1]
    if mesh.ep == 1:
        return declared
    tokens = config.train.micro_batch_size * config.data.sequence_length // (mesh.cp * mesh.tp)
    rows = tokens * model.experts_per_token
    if model.capacity_factor is not None:
        rows = model.experts * ceil(model.capacity_factor * rows / model.experts)
    # Dispatch and combine, each again in backward.
    ways = accumulation_steps * (4 * len(blocks) + 2 * recomputed)
    size = ways * rows * model.width * ITEM_BYTES[config.precision.compute_dtype]
    if model.capacity_factor is not None:
        return [*declared, Collective("all_to_all", "ep", ways, size)]
    announced = accumulation_steps * (len(blocks) + recomputed)
    return [*declared, Collective("all_to_all", "ep", ways + announced, size + announced * 8 * model.experts)]
