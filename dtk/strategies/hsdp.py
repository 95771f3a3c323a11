"""`hsdp`: zero3 within groups of dp_shard ranks, replicated across the groups."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from diagnostics.contract.formatting import counted
from diagnostics.contract.mesh import DATA, Mesh, divisors
from dtk.errors import DtkError
from dtk.strategies.fsdp import FSDP, FSDPConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class HSDPConfig(FSDPConfig):
    """Hybrid sharding: shard inside a group of dp_shard ranks, replicate over dp_replicate groups."""

    traits = replace(
        FSDPConfig.traits,
        replicated_over="dp_replicate",
        collectives=("all_gather", "reduce_scatter", "all_reduce"),
        always_grouped=DATA,
        simplicity=7,
    )
    kept = "P/S", "P/S", "K/S"
    collectives = "as zero3 over dp_shard; one all_reduce of P/S per unit over dp_replicate"
    sent = "as zero3 with N = S = dp_shard, and 2 P/S (R-1)/R with R = dp_replicate"
    use_when = "links inside a node are much faster than those between nodes"
    limits = {**FSDPConfig.limits, "dp_replicate": (-1, inf), "dp_shard": (-1, inf)}

    name: Literal["hsdp"] = "hsdp"  # type: ignore[assignment]
    dp_replicate: int = 2
    dp_shard: int = -1

    def mesh(self, dp_size: int) -> Mesh:
        """Return a mesh of replicated shards; a degree of -1 is inferred from the other."""
        replicate, shard = self.dp_replicate, self.dp_shard
        for name, degree in (("dp_replicate", replicate), ("dp_shard", shard)):
            if degree == 0 or degree < -1:
                what = f"strategy.{name}={degree} is not a valid mesh degree"
                raise DtkError(what, fix="use a positive number, or -1 for the rest")
        if replicate == shard == -1:
            what = "strategy.dp_replicate and strategy.dp_shard are both -1"
            raise DtkError(what, fix="give one of them a number")
        rows = dp_size // shard if replicate == -1 else replicate
        columns = dp_size // replicate if shard == -1 else shard
        if rows * columns != dp_size:
            valid = ", ".join(f"{dp_size // size} x {size}" for size in divisors(dp_size))
            mesh = f"a mesh of strategy.dp_replicate={replicate} x strategy.dp_shard={shard}"
            what = f"{mesh} does not fit {counted(dp_size, 'rank')}"
            raise DtkError(what, fix=f"valid dp_replicate x dp_shard: {valid}")
        return replace(FSDPConfig.mesh(self, columns), dp_replicate=rows)


CONFIG, STRATEGY = HSDPConfig, FSDP
