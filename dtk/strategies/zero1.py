"""`zero1`: ddp with the optimizer state partitioned over ranks by whole parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from diagnostics.contract.mesh import DATA, Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes
from dtk.sharding.traits import StrategyConfig
from dtk.strategies.ddp import DDP, DDPConfig, ddp_collectives
from dtk.strategies.fsdp import FSDPConfig

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from dtk.sharding.base import BuildOptimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero1Config(DDPConfig):
    """ZeRO stage 1 (Rajbhandari et al. 2020): DDP with the optimizer state sharded by parameter."""

    traits = replace(
        DDPConfig.traits, sharded=("optimizer_state",), collectives=("all_reduce", "broadcast"), simplicity=3
    )
    kept = "P", "P", "about K/N (whole parameters, so uneven)"
    collectives = "all_reduce of each gradient bucket; N broadcasts of updated parameters"
    sent = "2 P (N-1)/N + P (N-1)/N"
    use_when = "DDP almost fits, and only the optimizer state is too large"
    plain = (*DATA, "cp")

    name: Literal["zero1"] = "zero1"  # type: ignore[assignment]

    def in_units(self) -> StrategyConfig:
        """Return fully_shard that gathers once per step: it shards each parameter instead of assigning whole ones."""
        return StepUnitsConfig()

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Declare DDP's all_reduces, then a broadcast per rank of what it updated, at least one dummy element."""
        parameters, ranks = shapes.parameters, mesh.dp_size
        size = 4 * (sum(map(prod, parameters)) + max(0, ranks - len(parameters)))
        return [*ddp_collectives(self, parameters, ranks), Collective("broadcast", "dp", ranks, size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepUnitsConfig(FSDPConfig):
    """`zero1` of a sharded model: whole parameters and gradients within a step, shards between steps."""

    engine = "fsdp"
    gathers_once = True

    name: Literal["zero1"] = "zero1"  # type: ignore[assignment]
    reshard_after_forward: bool = False


class Zero1(DDP):
    """ZeRO stage 1 (Rajbhandari et al. 2020, ZeRO, SC20) on torch's ZeroRedundancyOptimizer.

    Whole parameters are assigned greedily, so the rank with the largest one holds the most.
    """

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Build an optimizer that keeps state only for this rank's parameters."""
        from dtk.parallel.marked_comm import MarkedZeRO

        return MarkedZeRO(groups, optimizer_class=build, parameters_as_bucket_view=True)  # type: ignore[arg-type]


CONFIG, STRATEGY = Zero1Config, Zero1
