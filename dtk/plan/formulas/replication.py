"""What a strategy with replicated parameters (single, ddp, zero1, DeepSpeed) holds at each moment of a step."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod

from dtk.plan.formulas.holding import MASTER_BYTES, ROOT, Holding
from dtk.plan.formulas.tape import Buffer
from dtk.strategies.declared import ITEM_BYTES, Shape
from dtk.strategies.engines.stage3 import gathered, persistent


def owned_elements(shapes: Sequence[Shape], world_size: int) -> list[int]:
    """Return the number of elements that each rank updates; 0 for ranks without parameters.

    torch's ZeroRedundancyOptimizer assigns whole parameters: group by group (matrices with weight decay, then vectors),
    the largest first, each to the rank with the fewest elements. Rajbhandari et al. 2020 partition evenly instead: Psi
    / N.
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
                    # Ranks differ by at most this much: each round gives every rank one parameter.
                    rounds, left = divmod(left, len(ranks))
                    ranks, most = [(owned + rounds * size, rank) for owned, rank in ranks], inf
                    continue
                heapq.heapreplace(ranks, (ranks[0][0] + size, ranks[0][1]))
                left -= 1
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
            # Rajbhandari et al. 2020 partition evenly, Psi / N; torch assigns whole parameters.
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


@dataclass(slots=True)
class FlatParts(Replicated):
    """Rajbhandari et al. 2020, section 5, with DeepSpeed 0.19's additional float32 copies and bucket buffer.

    States are exact except for padding. The bucket is allocated in full; stage 3 never frees it. The maximum that stage
    3 gathers counts from forward to backward.
    """

    bucket: Buffer | None = None
    """Bucket in which gradients are reduced, from the first of a micro-batch to the last."""
    gathered: Buffer | None = None
    """Parameters that stage 3 gathered from other ranks."""

    def settle(self) -> None:
        """Allocate parameters in the compute dtype, full or sharded, and the float32 shard with its optimizer state."""
        whole, own = self.shape.parameters, -(-self.shape.parameters // self.mesh.dp_size)
        self.ledger.change("parameters", self._item_bytes * (own if self.config.strategy.stage == 3 else whole))
        before = self.ledger.in_use.copy()
        self.ledger.change("optimizer states", MASTER_BYTES * own)
        self.place_states(own, 2, lambda shape: own)
        if self.config.strategy.offload != "none" and self.on_cuda:
            for category, size in (self.ledger.in_use - before).items():
                self.ledger.change(category, -size)
                self.host_bytes += size
        if self.config.strategy.stage == 3:
            self.ledger.change("buckets", self._bucket_bytes)
        self.temporary_bytes += MASTER_BYTES * own  # Gradients of this rank's shard, flat and in float32.

    def before_forward(self, unit: int) -> None:
        """Gather parameters under stage 3."""
        if unit == ROOT and self.config.strategy.stage == 3 and self.gathered is None:
            shapes, tuned = self.shape.shapes, self.config.strategy.tuned()
            stay = sum(prod(s) for s, stays in zip(shapes, persistent(shapes, tuned), strict=True) if stays)
            whole = stay + gathered(shapes, tuned)[1]
            others = whole - whole // self.mesh.dp_size
            self.gathered = self.ledger.allocate("gathered parameters", self._item_bytes * others)

    def after_backward(self, unit: int) -> None:
        """Free gathered parameters and the bucket."""
        if unit == ROOT:
            for buffer in (self.gathered, self.bucket):
                if buffer is not None:
                    buffer.drop()
            self.gathered = self.bucket = None

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Keep the gradient until the update under stage 1, else add it to the bucket and keep this rank's shard."""
        if self.bucket is None and self.config.strategy.stage < 3:
            self.bucket = self.ledger.allocate("buckets", self._bucket_bytes)
        if self.config.strategy.stage == 1:
            Replicated.gradient(self, name, gradient)
            return
        if name not in self.gradients:
            self.gradients[name] = self.ledger.allocate("gradients", gradient.size_bytes // self.mesh.dp_size)
        gradient.drop()

    @property
    def _bucket_bytes(self) -> int:
        return self._item_bytes * int(self.config.strategy.tuned()["reduce_bucket_size"])

    @property
    def _item_bytes(self) -> int:
        return ITEM_BYTES[self.config.precision.compute_dtype]
