"""One optimizer step, moment by moment: forward, loss, each block's backward, clip, update.

Joins a model on a tape with what a strategy holds; the ledger that both write to has the peak afterwards. The order
is that of `dtk.train.loop`.
"""

from dataclasses import dataclass, field

from dtk.plan.formulas.activations import LOSS_OPERATIONS
from dtk.plan.formulas.holding import Holding
from dtk.plan.formulas.tape import Value
from dtk.plan.formulas.transformer import Model


@dataclass(slots=True)
class Step:
    """A step of so many micro-batches."""

    model: Model
    holding: Holding
    micro_batches: int
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

    def run(self) -> None:
        """Walk through the whole step."""
        ledger, numbers = self.model.tape.ledger, self.model.numbers
        # Token ids and targets, int64, of all micro-batches.
        batches = ledger.allocate("activations", 2 * 8 * numbers.tokens * self.micro_batches)
        for i in range(self.micro_batches):
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
        for i in range(model.numbers.shape.layers):
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
        model, holding, tape = self.model, self.holding, self.model.tape
        tape.seed(loss, tape.ledger.allocate("logits", loss.size_bytes))
        loss.drop()
        head = self.marks.pop()
        tape.backward(holding.gradient, len(tape.nodes) - LOSS_OPERATIONS)
        holding.before_root_backward()
        tape.backward(holding.gradient, head)
        for i in reversed(range(model.numbers.shape.layers)):
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
        tape.backward(holding.gradient)
        holding.end_backward()

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
        last = block == self.model.numbers.shape.layers - 1
        return bool(self.blocks_per_unit) and (last or (block + 1) % self.blocks_per_unit == 0)
