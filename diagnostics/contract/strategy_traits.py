"""What the diagnosis knows of a dtk run's strategy: the traits in manifest.json, never the strategy's name."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import fields

Name = Annotated[str, Meta(min_length=1)]


class StrategyTraits(Struct, frozen=True):
    """Traits of one strategy; the defaults say nothing of it."""

    name: str = ""
    is_known: bool = False
    """Whether the run says what its strategy is like; else nothing follows from the other fields."""
    sharded: frozenset[str] = frozenset()
    """Of parameters, gradients and optimizer_state: those of which a rank keeps a part between steps."""
    replicated_over: Name | None = None
    """Mesh dimension whose ranks must hold the same parameters: dp or dp_replicate."""
    gradients_in: Name | None = None
    """buckets (DDP) or units (fully_shard); None = gradients do not travel between processes."""
    keeps_gradients: bool = False
    """Whether the memory of gradients is held from step to step."""
    keeps_gathered: bool = False
    """Whether it keeps gathered parameters from forward to backward by definition."""
    library: str = ""
    """Package that runs it and reduces gradients by keys of its own; empty = torch alone."""
    needs_less_memory: Name | None = None
    """The strategy to use where this one needs too much memory for model states."""

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank gathers parameters before it uses them."""
        return "parameters" in self.sharded

    @property
    def shards_optimizer_only(self) -> bool:
        """Whether only the optimizer state is dealt out (ZeRO-1)."""
        return self.sharded == {"optimizer_state"}


UNKNOWN = StrategyTraits()


def strategy_traits(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> StrategyTraits:
    """Read the traits of a run's strategy.

    Args:
        manifest: content of manifest.json; untrusted, so what has another type is passed over.
        config: content of config.yaml.
    """
    section = config.get("strategy")
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not name:
        return UNKNOWN
    recorded = manifest.get("strategy_traits")
    if not isinstance(recorded, Mapping):
        return StrategyTraits(name)
    traits: dict[str, Any] = {}
    for field in fields(StrategyTraits):
        with suppress(KeyError, ValueError):  # Also a half of a surrogate pair, which no type takes.
            traits[field.name] = convert(recorded[field.name], field.type)
    return StrategyTraits(**{**traits, "name": name, "is_known": True})
