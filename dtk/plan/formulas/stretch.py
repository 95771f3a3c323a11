"""Which blocks and which micro-batches of a step need to be walked: the others are like their neighbours.

Blocks repeat with a period; once the walk has settled, each period adds the same to what is held. Memory at one
moment of the period is then a straight line over the periods, whose highest point lies at its first or its last one,
and both are walked. Knows numbers only.
"""

import math
from dataclasses import dataclass

from dtk.parallel.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks to walk, with a place in their middle where so many periods of blocks are left out."""

    walked: int
    """Blocks."""
    period: int
    """Blocks after which everything repeats."""
    at: int = -1
    """Block before which the others are left out; -1 = none are."""
    skipped: int = 0
    """Periods that are left out there."""


def stretch(layers: int, unit: int, recompute_every: int, ahead: int) -> Stretch:
    """Return the shortest walk over the blocks that gives the same figures as a walk over all of them.

    Args:
        layers: blocks of the model.
        unit: blocks that are gathered together; 0 = blocks are no units.
        recompute_every: every k-th block is recomputed; 0 = none.
        ahead: units that are gathered ahead at most.
    """
    period = math.lcm(max(1, unit), max(1, recompute_every))
    # As many periods as a unit is gathered ahead, two more to settle, one to measure; the same on the way back.
    side = -(-ahead * unit // period) + 3
    skipped = layers // period - 2 * side
    if skipped < 1:
        return Stretch(layers, period)
    return Stretch(layers - skipped * period, period, side * period, skipped)


def micro_batches(pipeline: Pipeline) -> int:
    """Return how many to walk: the first makes the gradients, the last reduces them, and those between are alike.

    One rank needs a third one for that; in 1f1b all places of the pipeline are full besides, in interleaved_1f1b three
    rounds are walked. gpipe holds them all.
    """
    count, ranks = pipeline.micro_batches, pipeline.ranks
    if pipeline.schedule == "1f1b":
        return min(count, ranks + 2)
    return min(count, 3 * ranks) if pipeline.schedule == "interleaved_1f1b" and count % ranks == 0 else count
