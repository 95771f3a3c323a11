"""Every strategy is a file of `dtk/strategies`; `strategy=` selects it by name. There is no other list of strategies.
CONFIG is a `StrategyConfig` that can be read without torch, STRATEGY the class that a rank runs.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.traits import StrategyConfig, Traits

if TYPE_CHECKING:
    from diagnostics.contract.mesh import Mesh
    from dtk.parallel.context import Context
    from dtk.sharding.base import Strategy

NATIVE: Final = "native"
"""The `engine` of torch alone, without a library that wraps the model."""
_STRATEGIES = Path(__file__).parents[1] / "strategies"


class ConfigTypes(Mapping[str, type[StrategyConfig]]):
    """Strategy name -> type of its section, simplest first. Only the requested file is imported."""

    def __getitem__(self, name: str) -> type[StrategyConfig]:
        if name not in _files():
            raise KeyError(name)
        return cast(type[StrategyConfig], import_module(f"dtk.strategies.{name}").CONFIG)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_files(), key=lambda name: (self[name].traits.simplicity, name)))

    def __len__(self) -> int:
        return len(_files())


CONFIG_TYPES = ConfigTypes()


def preferred(gradients_in: str) -> str:
    """Return the strategy to suggest of those with such gradients: the least memory use, then the simplest."""
    traits = {name: kind.traits for name, kind in CONFIG_TYPES.items() if kind.traits.gradients_in == gradients_in}
    # CONFIG_TYPES is ordered from the simplest on.
    return min(traits, key=lambda name: (not traits[name].compared, not traits[name].shards_all))


def overrides_for(gradients_in: str, strategy: StrategyConfig, mesh: Mesh, cut: Sequence[str]) -> str:
    """Return the overrides with which gradients are communicated in `buckets` or `units`; "" if they are already.

    `cut` are the overrides that divide the model over this mesh, of which the result resets those that prevent it.
    """
    if strategy.on(mesh).traits.gradients_in == gradients_in:
        return ""
    name = preferred(gradients_in)
    fits = CONFIG_TYPES[name](name=name).on(mesh).traits.gradients_in == gradients_in
    return " ".join([f"strategy={name}", *(f"{text.split('=')[0]}=1" for text in cut if not fits)])


def alternatives(fits: Callable[[Traits], bool]) -> str:
    """Return `strategy=ddp or strategy=fsdp`: of the strategies that fit, the simplest and the one that shards most."""
    traits = {name: kind.traits for name, kind in CONFIG_TYPES.items() if fits(kind.traits)}
    compared = {name: those for name, those in traits.items() if those.compared} or traits
    most = max(compared, key=lambda name: (len(compared[name].sharded), compared[name].shards_all))
    return " or ".join(f"strategy={name}" for name in dict.fromkeys((next(iter(compared)), most)))


def needs_less_memory(traits: Traits) -> str | None:
    """Return the strategy to suggest if one needs too much memory for model states; None if none shards more."""
    others = ((name, kind.traits) for name, kind in CONFIG_TYPES.items())
    alike = (name for name, of in others if of.shards_all and of.library == traits.library)
    return None if traits.shards_all else next(alike, None)


for_several_ranks = functools.partial(alternatives, lambda traits: not traits.one_process)
"""Returns the strategies to suggest in place of one that runs in one process."""


def one_device() -> StrategyConfig:
    """Return the section of the strategy that trains in one process on one device."""
    alone = ((name, kind) for name, kind in CONFIG_TYPES.items() if kind.traits.one_process)
    return next(kind(name=name) for name, kind in alone if kind.traits.least_cuda_devices < 2)


def build_strategy(config: Any, context: Context, precision: PrecisionConfig, engine: str = NATIVE) -> Strategy:
    """Build the strategy `config.name` (imports only its file); `engine`: `native`, or a module of `dtk.engines`."""
    section = config.on(context.mesh)
    strategy = import_module(f"dtk.strategies.{section.engine or section.name}").STRATEGY
    if engine != NATIVE:
        strategy = import_module(f"dtk.engines.{engine}").run_by_library(strategy, section.traits)
    return cast("Strategy", strategy(section, context, precision))


@functools.cache
def _files() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules([str(_STRATEGIES)]))
