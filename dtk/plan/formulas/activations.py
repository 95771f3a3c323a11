"""Layers as operations on a tape: what a norm, a matrix product, attention and the loss keep for backward, in bytes.

Follows torch's kernels as they are on the device, one layer at a time. Sizes follow Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4, for the types at hand. Knows neither how
layers make a model nor a strategy.
"""

from dataclasses import dataclass, field
from math import prod

from dtk.config.schema import LlamaConfig
from dtk.plan.formulas.ledger import Buffer
from dtk.plan.formulas.shape import ModelShape
from dtk.plan.formulas.tape import Tape, Value
from dtk.plan.prediction import Category
from dtk.strategies.declared import Shape

FLOAT_BYTES = 4
LOSS_OPERATIONS = 3
"""Nodes that `cross_entropy` adds to the tape."""


@dataclass(slots=True)
class Numbers:
    """What the sizes of tensors follow from."""

    shape: ModelShape
    batch: int
    """Samples in the micro-batch."""
    sequence: int
    stream_bytes: int
    """Per element of the residual stream: 4, or 2 where FSDP casts whole units."""
    compute_bytes: int
    """Per element of what matrix products give."""
    on_cuda: bool

    @property
    def tokens(self) -> int:
        """In the micro-batch."""
        return self.batch * self.sequence

    @property
    def casts(self) -> bool:
        """Whether autocast makes 16-bit copies of what enters a matrix product."""
        return self.compute_bytes != self.stream_bytes


@dataclass(slots=True)
class Layers:
    """Runs layers on a tape."""

    numbers: Numbers
    tape: Tape
    shapes: dict[str, Shape] = field(init=False)
    """Of every parameter; those of blocks without their number."""
    cast_weights: dict[str, Buffer] = field(default_factory=dict)
    """Autocast's cache: 16-bit copies of weights, until its context ends."""

    def __post_init__(self) -> None:
        shape = self.numbers.shape
        self.shapes = dict((*shape.before, *shape.block, *shape.after))

    def end_autocast(self) -> None:
        """Its cache is emptied; backward still holds what it needs."""
        for copy in self.cast_weights.values():
            copy.drop()
        self.cast_weights.clear()

    def casts_of_autocast_alone(self) -> list[Buffer]:
        """Return the cast weights that no backward holds, which are freed when the autocast context ends."""
        return [copy for copy in self.cast_weights.values() if copy.holders == 1]

    def norm(self, x: Value, name: str) -> Value:
        """LayerNorm keeps its input and two numbers per row; RMSNorm on the CPU also the normalised input."""
        n = self.numbers
        size = n.tokens * n.shape.config.width * n.stream_bytes
        if not isinstance(n.shape.config, LlamaConfig):
            both = [self.gradient(f"{name}.{leaf}") for leaf in ("weight", "bias")]
            return self.tape.operation(size, [(x, size)], [x], kept_bytes=2 * FLOAT_BYTES * n.tokens, parameters=both)
        parameters = [self.gradient(f"{name}.weight")]
        rows = FLOAT_BYTES * n.tokens
        if n.on_cuda:
            return self.tape.operation(size, [(x, size)], [x], kept_bytes=rows, parameters=parameters)
        # Composed of small operations in float32.
        whole = n.tokens * n.shape.config.width * FLOAT_BYTES
        upcast = n.stream_bytes != FLOAT_BYTES
        return self.tape.operation(
            size,
            [(x, size)],
            saves=[] if upcast else [x],
            kept_bytes=whole + rows + (whole if upcast else 0),
            parameters=parameters,
            workspace_bytes=whole,
            backward_workspace_bytes=2 * whole,
        )

    def linear(self, x: Value, name: str, features: int, rows: int, category: Category = "activations") -> Value:
        """Return the output of a matrix product, which keeps its input, or 16-bit copies of input and weight."""
        n = self.numbers
        parameters = [self.gradient(f"{name}.weight")]
        if plain(f"{name}.bias") in self.shapes:
            parameters.append(self.gradient(f"{name}.bias"))
        out_bytes = rows * features * n.compute_bytes
        if not n.casts:
            return self.tape.operation(out_bytes, [(x, x.size_bytes)], [x], parameters=parameters, category=category)
        elements = prod(self.shapes[plain(f"{name}.weight")]) // features * rows
        wide = x.size_bytes == elements * n.stream_bytes
        narrow = self.tape.operation(elements * n.compute_bytes, [(x, x.size_bytes)]) if wide else x
        weight = Value(self._cast(f"{name}.weight"), 0)
        out = self.tape.operation(
            out_bytes,
            [(narrow, narrow.size_bytes)],
            saves=[narrow, weight],
            parameters=parameters,
            narrow_bytes=sum(size for _, size in parameters) // n.stream_bytes * n.compute_bytes,
            category=category,
        )
        if wide:
            narrow.drop()
        return out

    def attention(self, inputs: tuple[Value, ...], sizes: tuple[int, ...], out_bytes: int, dropout: float) -> Value:
        """Flash attention (Dao et al. 2022) keeps inputs, output and one number per row, not the s x s matrix.

        With dropout the CPU has no such kernel: the matrix is kept as softmax, as mask and after dropout.
        """
        n = self.numbers
        rows = n.tokens * n.shape.config.heads
        kept = rows * FLOAT_BYTES
        if dropout and not n.on_cuda:
            kept = 3 * rows * n.sequence * n.compute_bytes
        return self.tape.operation(
            out_bytes, list(zip(inputs, sizes)), saves=inputs, saves_output=True, kept_bytes=kept
        )

    def add(self, x: Value, branch: Value) -> Value:
        """Return the residual sum, for which nothing is kept, and release `branch`."""
        n = self.numbers
        size = n.tokens * n.shape.config.width * n.stream_bytes
        total = self.tape.operation(size, [(x, 0), (branch, branch.size_bytes if n.casts else 0)])
        branch.drop()
        return total

    def dropout(self, x: Value, rate: float) -> Value:
        """Apply dropout, which keeps its mask, and release `x`.

        The mask has the type of the input on the CPU and takes a byte per element on CUDA.
        """
        if not rate:
            return x
        n = self.numbers
        elements = n.tokens * n.shape.config.width
        kept = elements if n.on_cuda else x.size_bytes
        out = self.tape.operation(x.size_bytes, [(x, x.size_bytes)], kept_bytes=kept)
        x.drop()
        return out

    def cross_entropy(self, logits: Value) -> Value:
        """In float32: at its peak the log-probabilities, their gradient and that of the logits exist at once.

        Three operations: the logits as float32, log-softmax, the sum over the targets. Lets go of `logits`.
        """
        n = self.numbers
        size = logits.size_bytes // n.compute_bytes * FLOAT_BYTES
        if n.compute_bytes == FLOAT_BYTES:
            flat = self.tape.operation(0, [(logits, 0)])
        else:
            flat = self.tape.operation(size, [(logits, logits.size_bytes)], category="logits")
        chances = self.tape.operation(size, [(flat, size)], saves_output=True, category="logits")
        loss = self.tape.operation(FLOAT_BYTES, [(chances, size)], category="logits")
        for value in (logits, flat, chances):
            value.drop()
        return loss

    def gradient(self, name: str) -> tuple[str, int]:
        """Return a parameter's name and the bytes of its gradient, which has 16 bits where FSDP casts whole units."""
        return name, prod(self.shapes[plain(name)]) * self.numbers.stream_bytes

    def _cast(self, name: str) -> Buffer:
        """Autocast's copy of a weight, made once."""
        if name not in self.cast_weights:
            size = prod(self.shapes[plain(name)]) * self.numbers.compute_bytes
            self.cast_weights[name] = self.tape.ledger.allocate("activations", size)
        return self.cast_weights[name]


def plain(name: str) -> str:
    """Return a parameter's name without the number of its block."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name
