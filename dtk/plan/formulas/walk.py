"""One optimizer step, moment by moment: forward, loss, each block's backward, clip, update.

Joins a model on a tape with what a strategy holds; the ledger that both write to has the peak afterwards. The order
is that of `dtk.train.loop`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtk.plan.formulas.activations import LOSS_OPERATIONS
from dtk.plan.formulas.holding import Holding
from dtk.plan.formulas.ledger import Buffer
from dtk.plan.formulas.stretch import Stretch
from dtk.plan.formulas.tape import Value
from dtk.plan.formulas.transformer import Model
from dtk.plan.prediction import Category


@dataclass(slots=True)
class _Mark:
    """What was held before the period that is measured."""

    in_use: Counter[Category]
    piled: set[Buffer]


@dataclass(slots=True)
class Step:
    """A step of so many micro-batches."""

    model: Model
    holding: Holding
    micro_batches: int
    walked: Sequence[int]
    """Numbers of those that are walked through, the last one among them."""
    blocks: Stretch
    blocks_per_unit: int
    """0 = blocks are no units."""
    recompute_every: int
    """Every k-th block is recomputed in backward; 0 = none."""
    clips: bool
    inputs: list[Value] = field(default_factory=list)
    """Of each block in this micro-batch."""
    outputs: list[Value] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    """Nodes on the tape before each block."""
    mark: _Mark | None = None

    def run(self) -> None:
        """Walk through the whole step."""
        ledger, numbers = self.model.tape.ledger, self.model.numbers
        # Token ids and targets, int64, of all micro-batches.
        batches = ledger.allocate("activations", 2 * 8 * numbers.tokens * self.micro_batches)
        for i in self.walked:
            self.holding.last = i == self.micro_batches - 1
            ledger.enter("forward")
            loss = self._forward()
            ledger.enter("backward")
            self._backward(loss)
        if self.clips:
            ledger.enter("clip")
        ledger.enter("optimizer")
        self.holding.update()
        batches.drop()

    def _forward(self) -> Value:
        model, holding = self.model, self.holding
        holding.begin_forward()
        x = model.embed()
        for i in range(self.blocks.walked):
            self._skip(i, self.blocks.at - self.blocks.period)
            if self._first_of_unit(i):
                holding.before_forward(i // self.blocks_per_unit)
            self.marks.append(len(model.tape.nodes))
            model.tape.recording = not self._recomputes(i)
            out = model.block(x, f"blocks.{i}.")
            model.tape.recording = True
            self.inputs.append(x)
            self.outputs.append(out)
            if not self._recomputes(i):
                x.drop()
            if self._last_of_unit(i):
                holding.after_forward(i // self.blocks_per_unit)
            x = out
        self.marks.append(len(model.tape.nodes))
        logits = model.head(x)
        holding.end_forward()
        loss = model.cross_entropy(logits)
        model.end_autocast()
        return loss

    def _backward(self, loss: Value) -> None:
        holding, tape = self.holding, self.model.tape
        tape.seed(loss, tape.ledger.allocate("logits", loss.size_bytes))
        loss.drop()
        head = self.marks.pop()
        tape.backward(holding.gradient, len(tape.nodes) - LOSS_OPERATIONS)
        holding.before_root_backward()
        tape.backward(holding.gradient, head)
        for i in reversed(range(self.blocks.walked)):
            if self._last_of_unit(i):
                holding.before_backward(i // self.blocks_per_unit)
            x, out, mark = self.inputs.pop(), self.outputs.pop(), self.marks.pop()
            if self._recomputes(i):
                self._recompute(i, x, out)
            tape.backward(holding.gradient, mark)
            if self._recomputes(i):
                x.drop()
            if self._first_of_unit(i):
                holding.after_backward(i // self.blocks_per_unit)
            self._skip(i, self.blocks.at + self.blocks.period)
        tape.backward(holding.gradient)
        holding.end_backward()

    def _skip(self, block: int, measured_from: int) -> None:
        """At the place of the blocks that are left out: take what they would, as the period before it did.

        What they pile up, to be freed at once later, is more copies of that period's buffers; all else comes and goes.
        """
        if not self.blocks.skipped or block not in (measured_from, self.blocks.at):
            return
        ledger = self.model.tape.ledger
        piled = self.holding.piled() + self.model.casts_of_autocast_alone()
        if block == measured_from:
            self.mark = _Mark(Counter(ledger.in_use), set(piled))
            return
        assert self.mark is not None
        delta = Counter(ledger.in_use)
        delta.subtract(self.mark.in_use)
        for buffer in piled:
            if buffer not in self.mark.piled:
                delta[buffer.category] -= buffer.size_bytes
                delta["allocator slack"] -= ledger.slack_bytes(buffer.size_bytes)
                ledger.copy(buffer, self.blocks.skipped)
        ledger.shift(delta, self.blocks.skipped)

    def _recompute(self, block: int, x: Value, out: Value) -> None:
        """Run the block once more, from its input, and go back through that (Chen et al. 2016)."""
        tape = self.model.tape
        gradient = tape.gradients.pop(out)
        again = self.model.block(x, f"blocks.{block}.")
        again.drop()
        self.model.end_autocast()
        tape.seed(again, gradient)

    def _recomputes(self, block: int) -> bool:
        return bool(self.recompute_every) and block % self.recompute_every == 0

    def _first_of_unit(self, block: int) -> bool:
        return bool(self.blocks_per_unit) and block % self.blocks_per_unit == 0

    def _last_of_unit(self, block: int) -> bool:
        last = block == self.blocks.walked - 1
        return bool(self.blocks_per_unit) and (last or (block + 1) % self.blocks_per_unit == 0)
