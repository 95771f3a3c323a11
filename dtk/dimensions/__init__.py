"""Model parallelism: each kind distributes a model along one mesh dimension and declares what its ranks communicate."""

from collections.abc import Sequence

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import Config
from dtk.dimensions import cp, ep, tp
from dtk.sharding.declared import Collective, Shape


def inside(
    config: Config, mesh: Mesh, accumulation_steps: int, partial: Sequence[Shape], blocks: range | None = None
) -> list[Collective]:
    """Return the collectives that a model's forward and backward issue in a step; arguments as in `tp.declare`."""
    return [
        *tp.declare(config, mesh, accumulation_steps, partial, blocks),
        *cp.declare(config, mesh, accumulation_steps, blocks),
        *ep.declare(config, mesh, accumulation_steps, blocks),
    ]
