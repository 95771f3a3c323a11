"""What DeepSpeed holds at each moment of a step: whole or flat sharded states, with its buffers and copies."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from dtk.engines.deepspeed.stage3 import Elements, gathered, gathered_elements, persistent
from dtk.plan.formulas.holding import MASTER_BYTES, ROOT, Replicated
from dtk.plan.formulas.tape import Buffer
from dtk.sharding.declared import ITEM_BYTES, reduced_item_bytes


@dataclass(slots=True)
class FlatParts(Replicated):
    """Rajbhandari et al. 2020, section 5, as DeepSpeed 0.19 implements it. Exact except for padding."""

    bucket: Buffer | None = None
    """Bucket in which gradients travel, from the first of a backward to the last; stage 3 keeps it."""
    bucket_elements: int = 0
    """Size of the bucket, read once: the strategy takes it from the user's file."""
    filled: int = 0
    """Elements in the bucket."""
    own_gradients: Buffer | None = None
    """Gradients of this rank's shard, from the first reduction to the update; stage 3 keeps them."""
    gathered_elements: tuple[list[Elements], list[Elements]] = field(default_factory=lambda: ([], []))
    """Elements that stage 3 holds gathered in forward and in backward, at the turn of each parameter's module."""
    staying: int = 0
    """Elements that stage 3 keeps gathered between steps."""
    gathered_bytes: int = 0

    def settle(self) -> None:
        """Allocate parameters in the compute dtype, full or sharded, and the float32 shard with its optimizer state."""
        strategy, shapes = self.config.strategy, self.shape.shapes
        whole, own = self.shape.parameters, self._own
        self.bucket_elements = strategy.bucket_elements(whole)
        self.ledger.change("parameters", self._item_bytes * (own if strategy.stage == 3 else whole))
        before = self.ledger.in_use.copy()
        self.ledger.change("optimizer states", MASTER_BYTES * own)
        self.place_states(own, 2, lambda shape: own)
        if strategy.offload != "none" and self.on_cuda:
            self.move_to_host(before)
        if strategy.stage == 3:
            tuned = strategy.tuned()
            self._open_bucket()
            self.own_gradients = self.ledger.allocate("gradients", self._item_bytes * own)
            self.gathered_elements = gathered_elements(shapes, gathered(shapes, tuned))
            self.staying = sum(prod(s) for s, stays in zip(shapes, persistent(shapes, tuned), strict=True) if stays)
            self._hold(self.staying)
        self.temporary_bytes += MASTER_BYTES * own  # Gradients of this rank's shard, flat and in float32.

    def unit(self, block: int, experts: bool = False) -> int:
        """Return the block: stage 3 gathers the modules of a block one after the other."""
        return block

    def before_forward(self, unit: int) -> None:
        """Gather the modules of a block, or the embeddings."""
        self._gather(self.gathered_elements[0], self._parameters(unit))

    def after_forward(self, unit: int) -> None:
        """Gather what follows the last block."""
        if unit == self.shape.layers - 1:
            self._gather(self.gathered_elements[0], self._parameters(unit + 1))

    def before_backward(self, unit: int) -> None:
        """Gather the modules of a block again, or what follows the last one."""
        self._gather(self.gathered_elements[1], self._parameters(self.shape.layers if unit == ROOT else unit))

    def after_backward(self, unit: int) -> None:
        """Gather the embeddings again; in the end reduce what is left and free what was gathered."""
        if unit == 0:
            self._gather(self.gathered_elements[1], self._parameters(ROOT))
        if unit != ROOT:
            return
        if self.config.strategy.stage == 1 and self.last:
            for gradient in self.gradients.values():  # Only now are they reduced, in the order in which they came.
                self._collect(gradient)
            self.gradients.clear()
        if self.config.strategy.stage == 3:
            self._hold(self.staying)
        self._reduce()
        if self.config.strategy.stage < 3 and self.bucket is not None:
            self.bucket.drop()
            self.bucket = None

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Keep the gradient until backward ends under stage 1, else add it to the bucket."""
        self._open_bucket()
        if self.config.strategy.stage == 1:
            Replicated.gradient(self, name, gradient)
        else:
            self._collect(gradient)

    def update(self) -> None:
        """Run the optimizer's step, then gather again what stays gathered."""
        self._hold(0)
        Replicated.update(self)
        if self.config.strategy.stage == 3:
            self._hold(self.staying)
        elif self.own_gradients is not None:
            self.own_gradients.drop()
            self.own_gradients = None

    def _collect(self, gradient: Buffer) -> None:
        """Copy a gradient into the bucket, which is reduced first if it has no room."""
        elements = gradient.size_bytes // self._item_bytes
        if self.filled and self.filled + elements > self.bucket_elements:
            self._reduce()
        self.filled += elements
        if self.filled > self.bucket_elements:  # It has no room in an empty one either, and is reduced alone.
            self._reduce()
        gradient.drop()

    def _reduce(self) -> None:
        if self.filled:
            item, reduced = self._item_bytes, reduced_item_bytes(self.config.precision)
            # Stage 3 casts each gradient before it copies them, the others what they have copied.
            cast = 0 if item == reduced else reduced
            copy = reduced if self.config.strategy.stage == 3 else item
            self.ledger.allocate("buckets", (copy + cast) * self.filled).drop()
            self.filled = 0
            if self.own_gradients is None:
                self.own_gradients = self.ledger.allocate("gradients", self._item_bytes * self._own)

    def _open_bucket(self) -> None:
        if self.bucket is None:
            copies = 2 if self.config.strategy.doubles_bucket else 1
            self.bucket = self.ledger.allocate("buckets", copies * self._item_bytes * self.bucket_elements)

    def _gather(self, elements: list[Elements], parameters: Iterable[int]) -> None:
        """Hold what stage 3 holds while these parameters' modules begin, and then while they run."""
        if turns := [elements[p] for p in parameters if elements]:
            for most in (max(turn.beginning for turn in turns), max(turn.running for turn in turns)):
                self._hold(self.staying + most)

    def _hold(self, elements: int) -> None:
        size = self._item_bytes * elements
        self.ledger.change("gathered parameters", size - self.gathered_bytes)
        self.gathered_bytes = size

    def _parameters(self, unit: int) -> range:
        """Return the indices of a block's parameters; ROOT: of the embeddings; beyond the blocks: of what follows."""
        parts = [self.shape.before, *self.shape.blocks, self.shape.after]
        start = sum(map(len, parts[: unit + 1]))
        return range(start, start + len(parts[unit + 1]))

    @property
    def _own(self) -> int:
        return -(-self.shape.parameters // self.mesh.dp_size)

    @property
    def _item_bytes(self) -> int:
        return ITEM_BYTES[self.config.precision.compute_dtype]
