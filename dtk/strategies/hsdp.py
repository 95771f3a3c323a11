"""`hsdp`: zero3 within groups of dp_shard ranks, replicated across the groups."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from diagnostics.contract.mesh import Mesh, divisors
from dtk.errors import Errors
from dtk.sharding.traits import traits_beside
from dtk.strategies.fsdp import FSDP, FSDPConfig

_errors = Errors(__file__)


@dataclass(frozen=True, kw_only=True, slots=True)
class HSDPConfig(FSDPConfig):
    """Hybrid sharding: shard inside a group of dp_shard ranks, replicate over dp_replicate groups."""

    traits = traits_beside(__file__, FSDPConfig.traits)
    limits = {**FSDPConfig.limits, "dp_replicate": (-1, inf), "dp_shard": (-1, inf)}

    name: Literal["hsdp"] = "hsdp"  # type: ignore[assignment]
    dp_replicate: int = 2
    dp_shard: int = -1

    def mesh(self, dp_size: int) -> Mesh:
        """Return a mesh of replicated shards; a degree of -1 is inferred from the other."""
        replicate, shard = self.dp_replicate, self.dp_shard
        for name, degree in (("dp_replicate", replicate), ("dp_shard", shard)):
            _errors.refuse({"degree": degree == 0 or degree < -1}, name=name, degree=degree)
        _errors.refuse({"both_rest": replicate == shard == -1})
        rows = dp_size // shard if replicate == -1 else replicate
        columns = dp_size // replicate if shard == -1 else shard
        if rows * columns != dp_size:
            valid = ", ".join(f"{dp_size // size} x {size}" for size in divisors(dp_size))
            raise _errors("mesh", replicate=replicate, shard=shard, ranks=dp_size, valid=valid)
        return replace(FSDPConfig.mesh(self, columns), dp_replicate=rows)


CONFIG, STRATEGY = HSDPConfig, FSDP
