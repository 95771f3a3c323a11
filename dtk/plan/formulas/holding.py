"""The base: what a strategy holds of parameters, gradients and optimizer state at each moment of a step.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3;
Zhao et al. 2023, "PyTorch FSDP", section 3.2. Padding and imbalance are those of torch's own code.
"""

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import AdamWConfig, Config, SGDConfig
from dtk.plan.formulas.prediction import Category
from dtk.plan.formulas.shape import ModelShape
from dtk.plan.formulas.tape import Buffer, Ledger
from dtk.sharding.declared import Shape

MASTER_BYTES = 4  # Bytes per element of parameters and optimizer state, which are float32 under every precision.

WINDOWS = 3
"""Parameters whose states `dtk.parallel.tiers` keeps in memory: one being read, one in use, one being written."""

ROOT = -1  # Unit number of parameters that belong to no block.


@dataclass(slots=True)
class Holding(ABC):
    """Model states of one rank on a ledger. Units are numbered in forward order."""

    config: Config
    shape: ModelShape
    mesh: Mesh
    """Mesh over which states are distributed."""
    ledger: Ledger
    on_cuda: bool
    rank: int = 0
    """Index among the data-parallel ranks of the one that is predicted: it needs the most memory."""
    last: bool = True
    """Whether this is the last micro-batch, whose gradients are reduced."""
    temporary_bytes: int = 0
    """Bytes of the update's temporaries."""
    host_bytes: int = 0
    file_bytes: int = 0
    paged_bytes: int = 0
    """Bytes read from and written to the storage of offloaded states per step."""

    def place_states(self, elements: int, tensors: int, part: Callable[[Shape], int]) -> None:
        """Allocate the optimizer state on the device or where it is offloaded; updates then load it in windows."""
        optimizer, strategy = self.config.optimizer, self.config.strategy
        some = self.shape.before + self.shape.block * min(WINDOWS, self.shape.layers) + self.shape.after
        sizes = [part(shape) for matrices in (True, False) for _, shape in some if (len(shape) > 1) == matrices]
        if strategy.traits.deals_out_parameters:
            sizes.sort(reverse=True)  # A rank may own the largest of them.
        moved, counters = optimizer_bytes(optimizer, elements, 0), optimizer_bytes(optimizer, 0, tensors)
        largest = min(max(sizes), elements)
        if not strategy.pages("cuda" if self.on_cuda else "cpu"):
            self.ledger.change("optimizer states", moved + counters)
            self.temporary_bytes = update_bytes(optimizer, elements, largest, self.on_cuda)
            return
        self.ledger.change("optimizer states", counters)
        self.paged_bytes += 2 * moved
        if strategy.offload_to == "nvme":
            self.file_bytes += moved
        else:
            self.host_bytes += moved
        seen = optimizer_bytes(optimizer, min(windows(sizes), elements), 0)
        self.temporary_bytes = seen + update_bytes(optimizer, largest, largest, self.on_cuda)
        if optimizer.in_backward:
            self.ledger.change("temporaries", seen)

    def move_to_host(self, before: Counter[Category]) -> None:
        """Move what was allocated on the device since `before` to the host."""
        for category, size in (self.ledger.in_use - before).items():
            self.ledger.change(category, -size)
            self.host_bytes += size

    @abstractmethod
    def settle(self) -> None:
        """Allocate what is held between steps, from the second step on."""

    def unit(self, block: int, experts: bool = False) -> int:
        """Return the unit of a block, or of its experts if these are held separately."""
        return ROOT

    def piled(self) -> list[Buffer]:
        """Return the buffers that backward accumulates over blocks and that are freed together later."""
        return []

    def before_forward(self, unit: int) -> None:  # noqa: B027
        """Run before a unit's first block; ROOT: before the embeddings."""

    def after_forward(self, unit: int) -> None:  # noqa: B027
        """Run after a unit's last block; ROOT: after the head."""

    def before_backward(self, unit: int) -> None:  # noqa: B027
        """Run before the backward of a unit's last block; ROOT: of the head, after the gradient of the logits."""

    def after_backward(self, unit: int) -> None:  # noqa: B027
        """Run after the backward of a unit's first block; ROOT: of the embeddings."""

    @abstractmethod
    def gradient(self, name: str, gradient: Buffer) -> None:
        """Take ownership of the full gradient of one parameter for one micro-batch."""

    @abstractmethod
    def update(self) -> None:
        """Run the optimizer's step and zero_grad."""


def windows(sizes: Sequence[int]) -> int:
    """Return the maximum sum of WINDOWS consecutive sizes, which are in update order."""
    return max((sum(sizes[i : i + WINDOWS]) for i in range(len(sizes))), default=0)


def optimizer_bytes(config: AdamWConfig | SGDConfig, elements: int, tensors: int) -> int:
    """Return the bytes of the optimizer state of `elements` elements in `tensors` tensors.

    AdamW (Loshchilov & Hutter 2019) keeps two moments per element and a step counter per tensor; SGD one momentum.
    """
    if isinstance(config, AdamWConfig):
        return 2 * MASTER_BYTES * elements + MASTER_BYTES * tensors
    return MASTER_BYTES * elements if config.momentum else 0


def update_bytes(config: AdamWConfig | SGDConfig, elements: int, largest: int, on_cuda: bool) -> int:
    """Return the bytes of the update's temporaries: on CUDA (foreach) for all parameters, on the CPU for the largest.

    A fused AdamW needs none, nor does SGD without weight decay and Nesterov momentum.
    """
    if isinstance(config, AdamWConfig):
        if config.fused is not False:
            return 0
        return MASTER_BYTES * (elements if on_cuda else 2 * largest)
    if not config.weight_decay and not config.nesterov:
        return 0
    return MASTER_BYTES * (elements if on_cuda else largest)


STAGES = (0, 1, 2, 3)  # Stages of ZeRO: 0 shards nothing, 1 the optimizer state, 2 also gradients, 3 also parameters.


@dataclass(frozen=True, slots=True)
class Training:
    """Bytes per parameter of one training precision."""

    name: str
    weights: int
    """Bytes of the weights that forward uses."""
    gradients: int
    master: int
    """Bytes of the float32 copy of the weights that the optimizer updates."""
    momentum: int
    variance: int

    @property
    def per_parameter(self) -> int:
        """Total bytes per parameter."""
        return self.weights + self.gradients + self.optimizer

    @property
    def optimizer(self) -> int:
        """K of the ZeRO paper: the bytes that stage 1 shards."""
        return self.master + self.momentum + self.variance

    def rank_bytes(self, parameters: int, stage: int, ranks: int) -> float:
        """Return the bytes on each of `ranks` ranks, if `parameters` parameters are sharded evenly."""
        parts = (self.weights, 3), (self.gradients, 2), (self.optimizer, 1)
        return parameters * sum(size / (ranks if stage >= first else 1) for size, first in parts)


FULL = Training("fp32", 4, 4, 0, 4, 4)
"""dtk's layout under every precision: float32 weights are their own master, and 16-bit copies are not kept."""
_MIXED = Training("fp16 mixed", 2, 2, 4, 4, 4), Training("bf16 mixed", 2, 2, 4, 4, 4)
TRAININGS = (FULL, *_MIXED, Training("pure bf16", 2, 2, 0, 2, 2))


def owned_elements(shapes: Sequence[Shape], dp_size: int) -> list[int]:
    """Return the number of elements that each of `dp_size` ranks updates; 0 for ranks without parameters.

    torch's ZeroRedundancyOptimizer assigns whole parameters: group by group (matrices with weight decay, then vectors),
    the largest first, each to the rank with the fewest elements. Rajbhandari et al. 2020 partition evenly: Psi / N.
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
