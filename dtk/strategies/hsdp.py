"""`hsdp`: zero3 inside groups of dp_shard ranks, replicas between the groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal, cast

from diagnostics.contract.formatting import counted
from dtk.errors import DtkError
from dtk.parallel.mesh import Mesh, divisors
from dtk.strategies.declared import Collective, ModelShapes, padded_elements, reduced_item_bytes
from dtk.strategies.fsdp import FSDP, FSDPConfig
from dtk.strategies.traits import TableRow

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from dtk.config.schema import PrecisionConfig
    from dtk.strategies.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class HSDPConfig(FSDPConfig):
    """Hybrid sharding: shard inside a group of dp_shard ranks, replicate over dp_replicate groups."""

    traits = replace(
        FSDPConfig.traits,
        replicated_over="dp_replicate",
        collectives=("all_gather", "reduce_scatter", "all_reduce"),
        simplicity=7,
        needs_less_memory="zero3",
    )
    row = TableRow(
        "zero3 inside groups of S = dp_shard ranks, replicas between the groups",
        "P/S",
        "P/S",
        "K/S",
        "as zero3 over dp_shard; one all_reduce of P/S per unit over dp_replicate",
        "as zero3 with N = S, and 2 P/S (R-1)/R with R = dp_replicate",
        "links inside a node are much faster than those between nodes",
    )
    limits = {**FSDPConfig.limits, "dp_replicate": (-1, inf), "dp_shard": (-1, inf)}

    name: Literal["hsdp"] = "hsdp"  # type: ignore[assignment]
    dp_replicate: int = 2
    dp_shard: int = -1
    """-1 = all the ranks that dp_replicate leaves."""

    def mesh(self, world_size: int) -> Mesh:
        """Replicas of shards; -1 = what the other degree leaves."""
        replicate, shard = self.dp_replicate, self.dp_shard
        for name, degree in (("dp_replicate", replicate), ("dp_shard", shard)):
            if degree < 1 and degree != -1:
                raise DtkError(
                    f"strategy.{name}={degree} is no mesh degree", fix="use a positive number, or -1 for the rest"
                )
        if replicate == shard == -1:
            raise DtkError("strategy.dp_replicate and strategy.dp_shard are both -1", fix="give one of them a number")
        rows = world_size // shard if replicate == -1 else replicate
        columns = world_size // replicate if shard == -1 else shard
        if rows * columns != world_size:
            valid = ", ".join(f"{world_size // size} x {size}" for size in divisors(world_size))
            raise DtkError(
                f"a mesh of strategy.dp_replicate={replicate} x strategy.dp_shard={shard} does not fit "
                f"{counted(world_size, 'rank')}",
                fix=f"valid dp_replicate x dp_shard: {valid}",
            )
        return Mesh(dp_replicate=rows, dp_shard=columns)

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """As fsdp over dp_shard, and one all_reduce of the shard per unit over dp_replicate."""
        inside = FSDPConfig.declare(self, shapes, mesh, precision, accumulation_steps)
        elements = padded_elements(shapes.parameters, mesh.dp_shard) // mesh.dp_shard
        units = len(shapes.units(self.blocks_per_unit)) + 1
        return [*inside, Collective("all_reduce", "dp_replicate", units, elements * reduced_item_bytes(precision))]


class HSDP(FSDP):
    """Hybrid sharding on a mesh dp_replicate x dp_shard: gathers stay inside dp_shard.

    The reduction over dp_replicate runs in FSDP2's all-reduce hook, on the reduced shards.
    """

    def shard_mesh(self) -> DeviceMesh:
        """Return the dp_shard part of the 2-D mesh, and keep the dp_replicate group for the hook."""
        from dtk.parallel.context import data_parallel_mesh

        mesh = data_parallel_mesh(self.context, ("dp_replicate", "dp_shard"))
        self.replicate_group = mesh.get_group("dp_replicate")
        return mesh["dp_shard"]

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """As fsdp, with the gradients averaged over the replicas as well."""
        wrapped = super().wrap(model, fill)
        for module in [unit[0] for unit in self._units(model)] + [model]:
            cast("FSDPModule", module).set_all_reduce_hook(self._average_over_replicas)
        return wrapped

    def _average_over_replicas(self, gradient: Tensor) -> None:
        import torch.distributed as dist

        from dtk.parallel.regions import communication

        with communication("all_reduce", gradient.nbytes, "dp_replicate"):
            dist.all_reduce(gradient, group=self.replicate_group)
        gradient.div_(self.replicate_group.size())


CONFIG, STRATEGY = HSDPConfig, HSDP
