"""Which rank updates which parameter under ZeRO-1. Knows shapes only."""

import heapq
from collections.abc import Sequence
from math import prod

from dtk.strategies.declared import Shape


def owned_elements(shapes: Sequence[Shape], world_size: int) -> list[int]:
    """Elements that each rank updates; 0 for ranks that are left without parameters.

    As torch's ZeroRedundancyOptimizer deals whole parameters out: group by group (matrices, then vectors, as weight
    decay tells them apart), the largest first, each to the rank that has least. Rajbhandari et al. 2020 cut evenly
    instead: Psi / N.
    """
    ranks = [(0, rank) for rank in range(world_size)]
    for group in ([s for s in shapes if len(s) >= 2], [s for s in shapes if len(s) < 2]):
        for size in sorted(map(prod, group), reverse=True):
            owned, rank = ranks[0]
            heapq.heapreplace(ranks, (owned + size, rank))
    return [owned for owned, _ in sorted(ranks, key=lambda entry: entry[1])]
