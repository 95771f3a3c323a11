"""Keys of the `parallel` section: the degrees of the mesh."""

import dataclasses
import functools
from dataclasses import dataclass, field
from itertools import product
from math import log, prod
from typing import Literal

from diagnostics.contract.mesh import Mesh, divisors
from dtk.errors import DtkError, Errors
from dtk.parallel.pipeline import Pipeline
from dtk.sharding.registry import alternatives
from dtk.sharding.traits import StrategyConfig

_errors = Errors(__file__)
MODEL_PARALLEL = ("pp", "cp", "tp")
"""Dimensions that reduce data parallelism: ranks of one group work on the same samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Degrees of the mesh. Ranks not used by pp, cp and tp are data-parallel, and `strategy` divides them."""

    dp_replicate: int = -1
    dp_shard: int = -1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    sequence_parallel: bool = True
    loss_parallel: bool = True
    context: Literal["ring", "ulysses"] = "ring"
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zero_bubble", "zbv"] = "1f1b"
    microbatches: int | None = None
    stages_per_rank: int = 1
    blocks_per_stage: list[int] = field(default_factory=list, hash=False)
    placement: Literal["tp", "dp", "pp"] = "tp"

    @property
    def cut(self) -> list[str]:
        """Return the settings that shard the model, as typed: `parallel.tp=2`."""
        degrees = {name: getattr(self, name) for name in (*MODEL_PARALLEL, "ep")}
        return [f"parallel.{name}={degree}" for name, degree in degrees.items() if degree > 1]

    @functools.lru_cache(maxsize=256)  # noqa: B019  (Few values, kept; a search asks often.)
    def mesh(self, strategy: StrategyConfig, world_size: int) -> Mesh:
        """Return the mesh; DtkError if the strategy lacks a dimension, or the degrees do not match the ranks."""
        if (filled := self.filled(strategy, world_size)) is not self:
            return filled.mesh(strategy, world_size)
        for name in (*MODEL_PARALLEL, "ep"):
            degree, implemented = getattr(self, name), name in strategy.traits.dimensions
            rules = {"range": degree < 1, "dimension": degree > 1 and not implemented}
            instead = functools.partial(_with_dimension, name)
            _errors.refuse(rules, name=name, degree=degree, strategy=strategy.name, instead=instead)
        degrees = {name: getattr(self, name) for name in MODEL_PARALLEL}
        if world_size % prod(degrees.values()):
            raise self._misfit(degrees, world_size)
        strategy_ranks = world_size // prod(degrees.values())
        whole = dataclasses.replace(strategy.mesh(strategy_ranks), **degrees)
        # A strategy may keep states otherwise where experts are divided.
        ep = self.ep if whole.divided_by_ep % self.ep == 0 else whole.divided_by_ep
        mesh = strategy.on(dataclasses.replace(whole, ep=ep)).mesh(strategy_ranks)
        for name in ("dp_replicate", "dp_shard"):
            if (degree := getattr(self, name)) not in (-1, size := mesh.size(name)):
                about = {"name": name, "degree": degree, "size": size, "world_size": world_size}
                other = alternatives(lambda traits: traits.replicated_over == "dp_replicate")
                raise _errors("data_parallel", **about, strategy=strategy.name, other=other)
        try:
            return dataclasses.replace(mesh, ep=self.ep, innermost=self.placement, **degrees)  # type: ignore[arg-type]
        except ValueError as error:
            fits = max(n for n in divisors(dataclasses.replace(mesh, **degrees).divided_by_ep) if n <= self.ep)
            raise _errors("ep", ep=self.ep, world_size=world_size, why=error, fits=fits) from error

    def filled(self, strategy: StrategyConfig, world_size: int) -> "ParallelConfig":
        """Return the degrees with a number in place of -1: the ranks that remain; for ep all of its.

        DtkError if several of pp, cp and tp are -1, or another degree does not fit.
        """
        rest = [name for name in MODEL_PARALLEL if getattr(self, name) == -1]
        _errors.refuse({"several": len(rest) > 1}, typed=[f"parallel.{name}" for name in rest])
        if rest:
            names = ("dp_replicate", "dp_shard")
            fixed = [max(1, getattr(self, name), getattr(strategy, name, 1)) for name in names]
            fixed += [max(1, getattr(self, name)) for name in MODEL_PARALLEL]
            degree = max(1, world_size // prod(fixed))
            return dataclasses.replace(self, **{rest[0]: degree}).filled(strategy, world_size)  # type: ignore[arg-type]
        if self.ep == -1:
            mesh = dataclasses.replace(self, ep=1).mesh(strategy, world_size)
            return dataclasses.replace(self, ep=mesh.divided_by_ep)
        return self

    def pipeline(self, micro_batches: int) -> Pipeline:
        """Return the schedule of a step with this many micro-batches."""
        return Pipeline(self.schedule, self.pp, micro_batches, self.stages_per_rank)

    def _misfit(self, degrees: dict[str, int], world_size: int) -> DtkError:
        chosen = [name for name, degree in degrees.items() if degree > 1]
        fitting = [c for c in product(divisors(world_size), repeat=len(chosen)) if world_size % prod(c) == 0]
        near = min(fitting, key=lambda c: sum(abs(log(n / degrees[name])) for n, name in zip(c, chosen, strict=True)))
        typed = " x ".join(f"parallel.{name}={degrees[name]}" for name in chosen)
        nearest = " ".join(f"parallel.{name}={n}" for n, name in zip(near, chosen, strict=True))
        return _errors("misfit", typed=typed, world_size=world_size, nearest=nearest, product=prod(degrees.values()))


def _with_dimension(name: str) -> str:
    return alternatives(lambda traits: name in traits.dimensions)
