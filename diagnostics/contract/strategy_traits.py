"""Traits of a dtk run's strategy, from manifest.json; the diagnosis never compares the strategy's name."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import fields

Name = Annotated[str, Meta(min_length=1)]


class StrategyTraits(Struct, frozen=True):
    """Traits of one strategy; the defaults mean unknown."""

    name: str = ""
    is_known: bool = False
    """Whether the run recorded its traits; if not, the other fields are meaningless."""
    sharded: frozenset[str] = frozenset()
    """Those of parameters, gradients and optimizer_state of which a rank keeps a shard between steps."""
    replicated_over: Name | None = None
    """Mesh dimension whose ranks must hold the same parameters: dp or dp_replicate."""
    gradients_in: Name | None = None
    """buckets (DDP) or units (fully_shard); None if gradients are not communicated."""
    keeps_gradients: bool = False
    """Whether the memory of gradients is kept between steps."""
    keeps_gathered: bool = False
    """Whether it always keeps gathered parameters from forward to backward."""
    library: str = ""
    """Library that runs it and configures gradient reduction by its own keys; empty for torch alone."""
    needs_less_memory: Name | None = None
    """The alternative strategy if model states need too much memory."""

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are gathered before they are used."""
        return "parameters" in self.sharded


UNKNOWN = StrategyTraits()


def strategy_traits(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> StrategyTraits:
    """Read the traits of a run's strategy. Both files are untrusted, so values of other types are ignored."""
    section = config.get("strategy")
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not name:
        return UNKNOWN
    recorded = manifest.get("strategy_traits")
    if not isinstance(recorded, Mapping):
        return StrategyTraits(name)
    traits: dict[str, Any] = {}
    for field in fields(StrategyTraits):
        with suppress(KeyError, ValueError):  # This also raises for lone surrogates, which no type accepts.
            traits[field.name] = convert(recorded[field.name], field.type)
    return StrategyTraits(**{**traits, "name": name, "is_known": True})
