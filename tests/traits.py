"""What the manifest of a dtk run says of its strategy, for tests that make run folders by hand."""

import dataclasses
import json
from typing import Any

from diagnostics.contract.strategy_traits import StrategyTraits, strategy_traits
from dtk.sharding.registry import CONFIG_TYPES


def recorded_traits(strategy: str) -> dict[str, Any]:
    """Return the part of manifest.json that holds the traits of a strategy; nothing for a name that is not dtk's."""
    if strategy not in CONFIG_TYPES:
        return {}
    return {"strategy_traits": json.loads(json.dumps(dataclasses.asdict(CONFIG_TYPES[strategy].traits)))}


def traits_of(strategy: str) -> StrategyTraits:
    """Return the traits of a strategy as a diagnosis reads them."""
    return strategy_traits(recorded_traits(strategy), {"strategy": {"name": strategy}})
