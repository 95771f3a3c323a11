"""One optimizer step in the order of `dtk.train.loop`: a model on a tape under a strategy.

Blocks repeat with a period; once the walk is in a steady state, each period adds the same bytes. Memory at one point
of the period is then linear in the number of periods, so its peak is in the first or the last one; both are walked.
"""

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field

from dtk.config.schema import Config
from dtk.parallel.pipeline import Pipeline
from dtk.plan.formulas.holding import ROOT, Holding
from dtk.plan.formulas.prediction import Category
from dtk.plan.formulas.tape import Buffer, Tape, Value, drop
from dtk.plan.formulas.transformer import Model
from dtk.sharding.declared import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks to walk, with a position in their middle where periods of blocks are skipped."""

    walked: int
    """Number of walked blocks."""
    period: int
    """Number of blocks after which the walk repeats."""
    at: int = -1
    """Block before which periods are skipped; -1 if none are."""
    skipped: int = 0
    """Number of skipped periods."""


@dataclass(slots=True)
class Step:
    """One step of a model or pipeline stage with its configured holding."""

    holding: Holding
    blocks: Stretch
    first_block: int = 0
    """Index of its first block in the whole model."""
    last: bool = True
    """Whether the stage computes the loss; other stages send the residual stream."""
    model: Model = field(init=False)
    blocks_per_unit: int = field(init=False)
    """0 if blocks are not units."""
    walked: list[tuple[Value, Value, int]] = field(default_factory=list)
    """Per block of this micro-batch: its input, its output, and the number of nodes on the tape before it."""
    nodes_before_head: int = 0
    nodes_before_loss: int = 0
    measured_from: tuple[Counter[Category], set[Buffer]] = field(default_factory=lambda: (Counter(), set()))
    """Bytes held, and accumulated buffers, before the measured period."""
    received: Value | None = None
    returned: tuple[Buffer, ...] = ()
    """Buffers that the first half of a split backward holds until the second half has finished."""

    def __post_init__(self) -> None:
        holding, config = self.holding, self.holding.config
        alone = int(config.strategy.traits.flattened)
        self.blocks_per_unit = config.strategy.blocks_per_unit if in_units(config) else alone
        self.model = Model(
            dataclasses.replace(holding.shape, layers=self.blocks.walked),
            Tape(holding.ledger),
            config.train.micro_batch_size, config.data.sequence_length // config.parallel.cp,
            stream_item_bytes(config), ITEM_BYTES[config.precision.compute_dtype], holding.on_cuda,
            config.parallel, holding,
        )  # fmt: skip

    def forward(self, received: Buffer | None = None) -> Value:
        """Run one micro-batch and return the loss, or the residual stream that a stage sends.

        `received`, the residual stream of the previous stage, is held until this stage's backward has finished.
        """
        model, holding = self.model, self.holding
        if received is not None:
            self.received = Value(received, received.size_bytes)
        holding.before_forward(ROOT)
        x = model.embed() if self.received is None else self.received
        if self.received is not None:
            x.hold()
        for i in range(self.blocks.walked):
            self._skip(i, self.blocks.at - self.blocks.period)
            if self._first_of_unit(i):
                holding.before_forward(holding.unit(i))
            mark = len(model.tape.nodes)
            model.tape.recording = not self._recomputes(i)
            out = model.block(x, f"blocks.{i}.")
            model.tape.recording = True
            self.walked.append((x, out, mark))
            if not self._recomputes(i):
                x.drop()
            if self._last_of_unit(i):
                holding.after_forward(holding.unit(i))
            x = out
        self.nodes_before_head = len(model.tape.nodes)
        if not self.last:
            holding.after_forward(ROOT)
            model.end_autocast()
            return x
        logits = model.head(x)
        self.nodes_before_loss = len(model.tape.nodes)
        holding.after_forward(ROOT)
        loss = model.cross_entropy(logits)
        model.end_autocast()
        return loss

    def backward(self, loss: Value, received: Buffer | None = None, split: bool = False) -> Buffer | None:
        """Run backward from what `forward` returned; return the gradient of the residual stream that was received.

        `received` is the gradient from the next stage, held until the end; `split` leaves parameters to `weights`.
        """
        holding, tape = self.holding, self.model.tape
        tape.halves = [] if split else None
        tape.seed(loss, tape.ledger.allocate("logits", loss.size_bytes) if received is None else received.hold())
        if received is None:
            loss.drop()
        tape.backward(holding.gradient, max(self.nodes_before_head, self.nodes_before_loss))
        holding.before_backward(ROOT)
        tape.backward(holding.gradient, self.nodes_before_head)
        for i in reversed(range(self.blocks.walked)):
            if self._last_of_unit(i):
                holding.before_backward(holding.unit(i))
            x, out, mark = self.walked.pop()
            if self._recomputes(i):  # Recompute the block from its input (Chen et al. 2016).
                gradient = tape.gradients.pop(out)
                again = self.model.block(x, f"blocks.{i}.")
                again.drop()
                self.model.end_autocast()
                tape.seed(again, gradient)
            tape.backward(holding.gradient, mark)
            if self._recomputes(i):
                x.drop()
            if self._first_of_unit(i) and not split:
                holding.after_backward(holding.unit(i))
            self._skip(i, self.blocks.at + self.blocks.period)
        tape.backward(holding.gradient)
        live = [each for each in (received and loss.buffer, received, self.received and self.received.buffer) if each]
        if split:
            self.returned = tuple(live)
        else:
            holding.after_backward(ROOT)
            drop(*live)
        return tape.gradients.pop(self.received) if self.received is not None else None

    def weights(self) -> None:
        """Run the second half of a split backward; after the last one reduce gradients, unit by unit."""
        self.model.tape.weights(self.holding.gradient)
        drop(*self.returned)
        if self.holding.last:
            for unit in (*reversed(range(len(getattr(self.holding, "units", ())))), ROOT):
                self.holding.after_backward(unit)

    def _skip(self, block: int, measured_from: int) -> None:
        """Account for the skipped blocks at their position with the figures of the period before."""
        if not self.blocks.skipped or block not in (measured_from, self.blocks.at):
            return
        ledger = self.model.tape.ledger
        # Cast weights that no backward holds are freed when the autocast context ends.
        piled = self.holding.piled() + [copy for copy in self.model.cast_weights.values() if copy.holders == 1]
        if block == measured_from:
            self.measured_from = Counter(ledger.in_use), set(piled)
            return
        before, piled_before = self.measured_from
        delta = Counter(ledger.in_use)
        delta.subtract(before)
        for buffer in piled:
            if buffer not in piled_before:  # Freed together with the others later; everything else is temporary.
                delta[buffer.category] -= buffer.size_bytes
                delta["allocator slack"] -= ledger.slack_bytes(buffer.size_bytes)
                ledger.copy(buffer, self.blocks.skipped)
        ledger.shift(delta, self.blocks.skipped)

    def _recomputes(self, block: int) -> bool:
        every = self.holding.config.train.activation_checkpoint_every
        return bool(every) and (self.first_block + block) % every == 0

    def _first_of_unit(self, block: int) -> bool:
        return bool(self.blocks_per_unit) and block % self.blocks_per_unit == 0

    def _last_of_unit(self, block: int) -> bool:
        last = block == self.blocks.walked - 1
        return bool(self.blocks_per_unit) and (last or (block + 1) % self.blocks_per_unit == 0)


def in_units(config: Config) -> bool:
    """Return whether fully_shard shards the states in units."""
    return bool(config.strategy.traits.gradients_in == "units")


def stream_item_bytes(config: Config) -> int:
    """Return the bytes per element of the residual stream: FSDP's policy casts whole units, autocast keeps float32."""
    return ITEM_BYTES["float32" if getattr(config.strategy, "autocasts", True) else config.precision.compute_dtype]


def stretch(layers: int, unit: int, recompute_every: int, ahead: int) -> Stretch:
    """Return the shortest walk over the blocks that gives the same figures as a walk over all of them.

    `unit` is the number of blocks per gathered unit (0 = no units), `ahead` the maximum number of prefetched units.
    """
    period = math.lcm(max(1, unit), max(1, recompute_every))
    # As many periods as a unit is prefetched ahead, two to reach a steady state, one to measure; the same in backward.
    side = -(-ahead * unit // period) + 3
    skipped = layers // period - 2 * side
    if skipped < 1:
        return Stretch(layers, period)
    return Stretch(layers - skipped * period, period, side * period, skipped)


def micro_batches(pipeline: Pipeline) -> int:
    """Return the micro-batches to walk: the first allocates gradients, the last reduces them, others are equal.

    One rank needs a third one for that; 1f1b also fills the pipeline, interleaved_1f1b walks three rounds if its rounds
    are whole. Other schedules are walked in full: gpipe holds all micro-batches.
    """
    count, ranks = pipeline.micro_batches, pipeline.ranks
    if pipeline.schedule == "1f1b":
        return min(count, ranks + 2)
    return min(count, 3 * ranks) if pipeline.schedule == "interleaved_1f1b" and count % ranks == 0 else count
