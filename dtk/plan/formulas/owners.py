"""Which rank updates which parameter under ZeRO-1. Knows shapes only."""

import heapq
from collections import Counter
from collections.abc import Sequence
from math import inf, prod

from dtk.strategies.declared import Shape


def owned_elements(shapes: Sequence[Shape], world_size: int) -> list[int]:
    """Elements that each rank updates; 0 for ranks that are left without parameters.

    As torch's ZeroRedundancyOptimizer deals whole parameters out: group by group (matrices, then vectors, as weight
    decay tells them apart), the largest first, each to the rank that has least. Rajbhandari et al. 2020 cut evenly
    instead: Psi / N.
    """
    ranks = [(0, rank) for rank in range(world_size)]
    alike = Counter(shapes)
    for matrices in (True, False):
        sizes: Counter[int] = Counter()
        for shape, count in alike.items():
            if (len(shape) >= 2) == matrices:
                sizes[prod(shape)] += count
        for size in sorted(sizes, reverse=True):
            left, most = sizes[size], float(max(ranks)[0])
            while left:
                if left >= len(ranks) and most - ranks[0][0] < size:
                    # No rank has that much more than another: each round gives every rank one.
                    rounds, left = divmod(left, len(ranks))
                    ranks, most = [(owned + rounds * size, rank) for owned, rank in ranks], inf
                    continue
                heapq.heapreplace(ranks, (ranks[0][0] + size, ranks[0][1]))
                left -= 1
    return [owned for owned, _ in sorted(ranks, key=lambda entry: entry[1])]
