"""Deep models from shallow ones: once a model is deep, every figure is a straight line in the number of blocks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from dtk.config.schema import Config

DIRECT = 16
"""Blocks up to which the model itself is simulated."""
_SMALL, _LARGE = 4, 8
"""Depths in periods; two periods are too few, as the window of gathered units is not full."""
_Key = TypeVar("_Key")


def depths(config: Config) -> tuple[int, ...]:
    """Numbers of blocks to simulate: the model's own, or two smaller ones with the same remainder of a period.

    A period is the number of blocks after which sharding units and recomputed blocks repeat.
    """
    layers = getattr(config.model, "layers", 0)
    period, rest = _period(config), layers % _period(config)
    window = getattr(config.strategy, "prefetch_depth", 1)
    # Blocks without experts at the front are in both.
    first = -(-getattr(config.model, "dense_layers", 0) // period)
    small = (max(_SMALL, window + 3) + first) * period + rest
    large = small + (_LARGE - _SMALL) * period
    # Buckets of a fixed size and whole parameters dealt out to ranks do not grow evenly with the depth.
    if config.strategy.traits.gradients_in == "buckets" or layers <= max(DIRECT, large):
        return (layers,)
    return small, large


def at_depth(config: Config, layers: int) -> Config:
    """Return the same job with another number of blocks; a custom model (`layers` = 0) stays as it is."""
    if not layers or layers == config.model.layers:
        return config
    return dataclasses.replace(config, model=dataclasses.replace(config.model, layers=layers))


def edge_blocks(config: Config) -> int:
    """Blocks at either end whose peaks are told apart, so that a peak is compared with that of the same block."""
    return 2 * _period(config)


def extended(depths: Sequence[int], figures: Sequence[Mapping[_Key, int]], layers: int) -> dict[_Key, int]:
    """Figures at `layers` blocks: as they are for one depth, on the line through two; never below 0.

    Args:
        depths: that were simulated, one or two.
        figures: one mapping per depth; what is missing in one of them is 0 there.
        layers: of the model.
    """
    if len(depths) == 1:
        return dict(figures[0])
    (small, large), (low, high) = depths, figures
    made = {}
    for key in {**low, **high}:
        first, second = low.get(key, 0), high.get(key, 0)
        made[key] = max(0, first + round((second - first) * (layers - small) / (large - small)))
    return made


def _period(config: Config) -> int:
    unit = getattr(config.strategy, "blocks_per_unit", 0) or 1
    return math.lcm(unit, config.train.activation_checkpoint_every or 1)
