"""What a strategy with replicated parameters holds at each moment of a step."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod

from dtk.plan.formulas.holding import MASTER_BYTES, Holding
from dtk.plan.formulas.tape import Buffer
from dtk.sharding.declared import Shape


def owned_elements(shapes: Sequence[Shape], dp_size: int) -> list[int]:
    """Return the number of elements that each of `dp_size` ranks updates; 0 for ranks without parameters.

    torch's ZeroRedundancyOptimizer assigns whole parameters: group by group (matrices with weight decay, then vectors),
    the largest first, each to the rank with the fewest elements. Rajbhandari et al. 2020 partition evenly instead: Psi
    / N.
    """
    ranks = [(0, rank) for rank in range(dp_size)]
    alike = Counter(shapes)
    for matrices in (True, False):
        sizes: Counter[int] = Counter()
        for shape, count in alike.items():
            if (len(shape) >= 2) == matrices:
                sizes[prod(shape)] += count
        for size in sorted(sizes, reverse=True):
            remaining, most = sizes[size], float(max(ranks)[0])
            while remaining:
                if remaining >= len(ranks) and most - ranks[0][0] < size:
                    # Ranks differ by at most this much: each round gives every rank one parameter.
                    rounds, remaining = divmod(remaining, len(ranks))
                    ranks, most = [(owned + rounds * size, rank) for owned, rank in ranks], inf
                    continue
                heapq.heapreplace(ranks, (ranks[0][0] + size, ranks[0][1]))
                remaining -= 1
    return [owned for owned, _ in sorted(ranks, key=lambda entry: entry[1])]


@dataclass(slots=True)
class Replicated(Holding):
    """Every rank has all parameters and gradients (Li et al. 2020, "PyTorch Distributed", section 3)."""

    gradients: dict[str, Buffer] = field(default_factory=dict)
    buckets: list[tuple[set[str], int]] = field(default_factory=list)
    """Names of pending gradients of each bucket, and the extra bytes that its hook then holds."""

    def settle(self) -> None:
        """Allocate parameters, DDP's buckets (as large as all gradients, never freed) and optimizer state."""
        strategy = self.config.strategy
        elements = self.shape.parameters
        tensors = self.shape.total(len)
        self.ledger.change("parameters", MASTER_BYTES * elements)
        if self._reduces:
            self.ledger.change("gradients" if self._views else "buckets", MASTER_BYTES * elements)
            if strategy.remembers_error:
                self.ledger.change("buckets", MASTER_BYTES * elements)  # Compression errors.
            if strategy.communication_hook != "none":
                ready, reductions = self.shape.names[::-1], strategy.reductions(self.shape.shapes, self.mesh.dp_size)
                self.buckets = [({ready[i] for i in each.members}, each.beside_bytes) for each in reductions]
        if strategy.traits.deals_out_parameters:
            owned = owned_elements(self.shape.shapes, self.mesh.dp_size)
            self.rank, elements = max(enumerate(owned), key=lambda entry: entry[1])
            tensors = -(-tensors // len(owned))
        self.place_states(elements, tensors, prod)

    def piled(self) -> list[Buffer]:
        """Return the gradients that the update frees; bucket views are released one by one in the last micro-batch."""
        return [] if self._views else list(self.gradients.values())

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Keep the first gradient and accumulate others; in the last micro-batch DDP replaces it by a bucket view."""
        before = self.gradients.pop(name, None)
        if before is not None:
            gradient.drop()
            gradient = before
        for waiting, beside_bytes in self.buckets if self.last else ():
            if name in waiting:
                waiting.remove(name)
                self.ledger.allocate("temporaries", 0 if waiting else beside_bytes).drop()
        if self.config.optimizer.in_backward or (self._views and self.last):
            gradient.drop()
        else:
            self.gradients[name] = gradient

    def update(self) -> None:
        """Run the optimizer's step, then free the gradients."""
        self.ledger.allocate("temporaries", self.temporary_bytes).drop()
        for gradient in self.gradients.values():
            gradient.drop()
        self.gradients.clear()

    @property
    def _views(self) -> bool:
        return self._reduces and bool(self.config.strategy.gradient_as_bucket_view)

    @property
    def _reduces(self) -> bool:
        alone = self.mesh.pp > 1 and self.mesh.dp_size == 1
        return bool(self.config.strategy.traits.gradients_in == "buckets") and not alone
