"""What torch's fully_shard (FSDP2) holds of parameters, gradients and optimizer state at each moment of a step."""

from dataclasses import dataclass, field
from itertools import chain

from dtk.parallel.compression import rounding_bytes
from dtk.plan.formulas.holding import MASTER_BYTES, ROOT, Holding
from dtk.plan.formulas.shape import ModelShape, Named, block_of
from dtk.plan.formulas.tape import Buffer
from dtk.sharding.declared import ITEM_BYTES, Shape, reduced_item_bytes, shard_blocks, shard_elements


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that are gathered together."""

    parameters: Named
    experts: bool = False
    """Whether these are an `ep` rank's experts, which are sharded over fewer ranks than the rest."""


@dataclass(slots=True)
class Sharded(Holding):
    """FSDP2's per-parameter sharding on dim 0 (Zhao et al. 2023, "PyTorch FSDP", section 3)."""

    shards: int = 1
    """Ranks that share one copy of the parameters."""
    units: list[Unit] = field(default_factory=list)
    """All units except the root, in forward order: the experts of a block before the block."""
    gathered: dict[int, Buffer] = field(default_factory=dict)
    arriving: dict[int, Buffer] = field(default_factory=dict)
    """Outputs of all_gathers that have not been copied out yet."""
    secondary: dict[int, Buffer] = field(default_factory=dict)
    """Secondary shards of gathered parameters that forward keeps for backward."""
    copied_out: Buffer | None = None
    """In forward FSDP2 keeps the last all_gather output until the next one is copied out."""
    unsharded: dict[int, dict[str, Buffer]] = field(default_factory=dict)
    """Gradients before their reduction, by unit."""
    widened: set[Buffer] = field(default_factory=set)
    """Those gradients that already have the reduce dtype."""
    reducing: Buffer | None = None
    """Input of the last reduction, kept until the next one starts."""
    reduced: list[Buffer] = field(default_factory=list)
    """Gradient shards."""

    def settle(self) -> None:
        """Allocate the shards of parameters and optimizer state, on the device or, if offloaded, on the host."""
        shape, strategy, mixtures = self.shape, self.config.strategy, self.shape.layers - self.shape.dense
        elements = shape.total(lambda named: shard_elements(_shapes(named), self.shards))
        elements += mixtures * shard_elements(_shapes(shape.experts), self.mesh.expert_shard)
        tensors = shape.total(len) + mixtures * len(shape.experts)
        before = self.ledger.in_use.copy()
        self.place_states(elements, tensors, lambda shape: shard_elements([shape], self.shards))
        if not strategy.offloads_parameters:
            self.ledger.change("parameters", elements * MASTER_BYTES)
            return
        self.move_to_host(before)  # The update runs there.
        gradients = 0 if self.config.optimizer.in_backward else elements * MASTER_BYTES
        self.host_bytes += gradients + self.temporary_bytes
        self.temporary_bytes = 0
        if strategy.offload_to == "host":
            self.host_bytes += elements * MASTER_BYTES
        else:
            once, again = elements, elements - shard_elements(_shapes(shape.root), self.shards)
            rounds = 1 if strategy.gathers_once else self.config.batch_plan(self.mesh.world_size).accumulation_steps
            gathered = once + again * (self.mesh.dp_secondary == 1 and strategy.reshard_after_forward)
            self.file_bytes += elements * MASTER_BYTES
            self.paged_bytes += MASTER_BYTES * (2 * elements + (rounds * gathered if self.shards > 1 else 0))

    def unit(self, block: int, experts: bool = False) -> int:
        """Return the index in `units` of the unit of a block or of its experts; ROOT if blocks are not units."""
        size = self.config.strategy.blocks_per_unit
        if not size and not experts:
            return ROOT
        end = block + 1 if experts else (block // size + 1) * size
        mixtures = min(max(0, end - self.shape.dense), sum(each.experts for each in self.units))
        return mixtures - experts + (block // size if size else 0)

    def piled(self) -> list[Buffer]:
        """Return gradient shards; if blocks are not units, the gradients that wait for the end of backward."""
        waiting = [] if self.config.strategy.blocks_per_unit else list(self.unsharded.get(ROOT, {}).values())
        return [*self.reduced, *waiting]

    def before_forward(self, unit: int) -> None:
        """Gather, and prefetch if the depth is above 1: otherwise no prefetch starts from the host."""
        self._unshard(unit)
        self._wait(unit, forward=True)
        depth = 0 if unit == ROOT else self.config.strategy.prefetch_depth
        for ahead in range(unit + 1, min(unit + 1 + depth, len(self.units)) if depth > 1 else 0):
            self._unshard(ahead)

    def after_forward(self, unit: int) -> None:
        """Free gathered parameters if the unit is resharded; the root unit is kept, as backward needs it first."""
        if unit == ROOT:
            self._free_copied_out()
        elif self.config.strategy.reshard_after_forward:
            if (parts := self.mesh.dp_secondary) > 1:
                size = self._padded(unit) * self._compute_bytes // parts
                self.secondary[unit] = self.ledger.allocate("gathered parameters", size)
            self.gathered.pop(unit).drop()

    def before_backward(self, unit: int) -> None:
        """Gather again, and prefetch earlier units. Only another backward in a pipeline frees the root unit earlier."""
        self._unshard(unit)
        self._wait(unit, forward=False)
        # While the head's gradients are computed, the last unit of blocks is gathered.
        behind, depth = (len(self.units), 1) if unit == ROOT else (unit, self.config.strategy.prefetch_depth)
        for ahead in range(behind - 1, max(0, behind - max(1, depth)) - 1, -1):
            self._unshard(ahead)

    def after_backward(self, unit: int) -> None:
        """Free the parameters, unless the step keeps them; in the last micro-batch reduce the gradients."""
        if self.last or not self.config.strategy.gathers_once:
            self.gathered.pop(unit).drop()
        gradients = self.unsharded.get(unit, {})
        if not self.last:
            for name, gradient in gradients.items():  # They are kept in the reduce dtype until the last micro-batch.
                if self._reduce_bytes != self._compute_bytes and gradient not in self.widened:
                    gradients[name] = self._widened(gradient)
            return
        if self.reducing is not None:
            self.reducing.drop()
        padded = self._padded(unit)
        self.reducing = self.ledger.allocate("buckets", padded * self._reduce_bytes)
        for gradient in gradients.values():
            gradient.drop()
        gradients.clear()
        own = padded // self._shards(unit)
        shard = self.ledger.allocate("gradients", own * self._reduce_bytes)
        self._quantize(unit, gathers=False)
        if self._reduce_bytes != MASTER_BYTES:  # The master gradient is float32.
            wide = self.ledger.allocate("gradients", own * MASTER_BYTES)
            shard.drop()
            shard = wide
        # Offloaded gradients are kept on the host; an update in backward frees them immediately.
        if self.config.strategy.offloads_parameters or self.config.optimizer.in_backward:
            shard.drop()
        else:
            self.reduced.append(shard)
        if unit == ROOT:
            self.reducing.drop()
            self.reducing = None

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Keep the whole gradient until its unit is reduced; those of later micro-batches are added to it."""
        block, apart = block_of(name), bool(self.shape.experts) and ".experts." in name
        unit = ROOT if block is None else self.unit(block, apart)
        gradients = self.unsharded.setdefault(unit, {})
        if name in gradients:
            gradient.drop()
        else:
            gradients[name] = gradient

    def update(self) -> None:
        """Run the optimizer's step, then free the gradients."""
        self.ledger.allocate("temporaries", self.temporary_bytes).drop()
        for shard in self.reduced:
            shard.drop()
        self.reduced.clear()

    def whole_bytes(self, accumulated: bool) -> int:
        """Return the bytes of whole tensors after a forward: parameters that stay, earlier micro-batches' gradients."""
        stays = 0 if self.config.strategy.reshard_after_forward or self.shards == 1 else self._compute_bytes
        return self.shape.parameters * (stays + accumulated * self._reduce_bytes)

    @property
    def _compute_bytes(self) -> int:
        return ITEM_BYTES["float32" if self.config.strategy.autocasts else self.config.precision.compute_dtype]

    @property
    def _reduce_bytes(self) -> int:
        return MASTER_BYTES if self.config.strategy.autocasts else reduced_item_bytes(self.config.precision)

    def _unit(self, unit: int) -> list[Shape]:
        if unit != ROOT:
            return _shapes(self.units[unit].parameters)
        alone = not self.config.strategy.blocks_per_unit
        return _shapes(self.shape.root) + [size for block in self.shape.blocks * alone for size in _shapes(block)]

    def _shards(self, unit: int) -> int:
        return self.mesh.expert_shard if unit != ROOT and self.units[unit].experts else self.shards

    def _padded(self, unit: int) -> int:
        return self._shards(unit) * shard_elements(self._unit(unit), self._shards(unit))

    def _unshard(self, unit: int) -> None:
        """Start the all_gather; do nothing if it was started or is not needed."""
        if unit in self.gathered or unit in self.arriving:
            return
        shards = self._shards(unit)
        size = self._padded(unit) * self._compute_bytes if shards > 1 else 0
        casts, offloads = self._compute_bytes != MASTER_BYTES, self.config.strategy.offloads_parameters and self.on_cuda
        sent = self.ledger.allocate("temporaries", size // shards if casts or offloads else 0)
        self.arriving[unit] = self.ledger.allocate("gathered parameters", size)
        if unit not in self.secondary:
            self._quantize(unit, gathers=True)
        sent.drop()

    def _quantize(self, unit: int, gathers: bool) -> None:
        strategy, shards = self.config.strategy, self._shards(unit)
        if shards > 1 and (strategy.quantized_weights if gathers else strategy.quantized_gradients):
            blocks = shard_blocks(self._unit(unit), shards)
            self.ledger.allocate("temporaries", rounding_bytes(blocks, shards, gathers)).drop()

    def _wait(self, unit: int, forward: bool) -> None:
        """Copy a finished all_gather out into the parameters."""
        if unit not in self.arriving:
            return
        size = self._padded(unit) * self._compute_bytes
        self.gathered[unit] = self.ledger.allocate("gathered parameters", size)
        if unit in self.secondary:
            self.secondary.pop(unit).drop()
        output = self.arriving.pop(unit)
        if forward:
            # Not earlier: torch waits for the previous copy, but holds its source until this one is made.
            self._free_copied_out()
            self.copied_out = output
        else:
            output.drop()

    def _free_copied_out(self) -> None:
        if self.copied_out is not None:
            self.copied_out.drop()
            self.copied_out = None

    def _widened(self, gradient: Buffer) -> Buffer:
        size = gradient.size_bytes // self._compute_bytes * self._reduce_bytes
        others, gradient.copies = gradient.copies - 1, 1
        slack = self.ledger.slack_bytes(gradient.size_bytes)
        self.ledger.shift({gradient.category: gradient.size_bytes, "allocator slack": slack}, -others)
        wide = self.ledger.allocate("gradients", size)
        self.ledger.copy(wide, others)
        self.widened.add(wide)
        gradient.drop()
        return wide


def _shapes(named: Named) -> list[Shape]:
    return [shape for _, shape in named]


def shard_units(shape: ModelShape, walked: int, blocks_per_unit: int) -> list[Unit]:
    """Return the units of `walked` blocks; without `blocks_per_unit` only experts are units besides the whole model."""
    units, blocks = list[Unit](), shape.blocks[:walked]
    for i in range(walked):
        if shape.experts and i >= shape.dense:
            units.append(Unit(shape.experts, experts=True))
        if blocks_per_unit and ((i + 1) % blocks_per_unit == 0 or i == walked - 1):
            units.append(Unit(tuple(chain(*blocks[i // blocks_per_unit * blocks_per_unit : i + 1]))))
    return units
