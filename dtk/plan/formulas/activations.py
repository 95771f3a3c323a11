"""Layers as operations on a tape: bytes that a norm, a matrix product, attention and the loss keep for backward.

Follows torch's kernels as they are on the device, one layer at a time. Sizes follow Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", section 4, for the types at hand. Knows no model or strategy.
"""

from dataclasses import dataclass, field
from math import prod

from dtk.config.schema import EncoderConfig, LlamaConfig, ParallelConfig
from dtk.plan.formulas.holding import Holding
from dtk.plan.formulas.prediction import Category
from dtk.plan.formulas.shape import ROW, ModelShape
from dtk.plan.formulas.tape import Buffer, Tape, Value, drop
from dtk.sharding.declared import Shape

FLOAT_BYTES = 4  # Bytes of a float32.
PER_TARGET_BYTES = 10
"""Bytes per target that the vocabulary-parallel loss saves: its local index, int64, and two masks."""


@dataclass(slots=True)
class Layers:
    """Records layers on a tape; tensor sizes follow from its fields."""

    shape: ModelShape
    tape: Tape
    batch: int
    """Samples in the micro-batch."""
    sequence: int
    stream_bytes: int
    """Bytes per element of the residual stream: 4, or 2 if FSDP casts whole units."""
    compute_bytes: int
    """Bytes per element of the output of matrix products."""
    on_cuda: bool
    parallel: ParallelConfig
    """How layers, sequences and the loss are divided over ranks; `sequence` is the length of one part."""
    holding: Holding | None = None
    """Owner of the parameters, if experts are held separately."""
    shapes: dict[str, Shape] = field(init=False)
    """Shapes of all parameters; names of block parameters have no block number."""
    cast_weights: dict[str, Buffer] = field(default_factory=dict)
    """Autocast's cache: 16-bit copies of weights, until its context ends."""

    def __post_init__(self) -> None:
        shape = self.shape
        self.shapes = dict((*shape.before, *shape.dense_block, *shape.block, *shape.experts, *shape.after))

    @property
    def tp(self) -> int:
        """Ranks over which each layer is sharded."""
        return self.parallel.tp

    @property
    def tokens(self) -> int:
        """Tokens in the micro-batch."""
        return self.batch * self.sequence

    @property
    def stream_tokens(self) -> int:
        """Tokens of the micro-batch in a rank's residual stream."""
        return self.tokens // self.tp if self.parallel.sequence_parallel else self.tokens

    @property
    def stream_size(self) -> int:
        """Bytes of a rank's residual stream."""
        return self.stream_tokens * self.shape.config.width * self.stream_bytes

    @property
    def casts(self) -> bool:
        """Whether autocast makes 16-bit copies of what enters a matrix product."""
        return self.compute_bytes != self.stream_bytes

    def end_autocast(self) -> None:
        """Empty the cast cache; backward still holds the copies that it needs."""
        for copy in self.cast_weights.values():
            copy.drop()
        self.cast_weights.clear()

    def norm(self, x: Value, name: str) -> Value:
        """Apply the norm. LayerNorm keeps its input and two numbers per row; RMSNorm one, on a CPU also `x` normed."""
        size = self.stream_size
        saved = rows = FLOAT_BYTES * self.stream_tokens
        work, saves, leaves = 0, [x], ["weight"]
        if not isinstance(self.shape.config, LlamaConfig):
            saved, leaves = 2 * rows, ["weight", "bias"]
        elif not self.on_cuda:  # Composed of small operations in float32.
            work = self.stream_tokens * self.shape.config.width * FLOAT_BYTES
            saved += work
            if self.stream_bytes != FLOAT_BYTES:  # The float32 input is saved instead of the input.
                saved, saves = saved + work, []
        return self.tape.operation(
            size,
            [(x, size)],
            saves,
            kept_bytes=saved,
            parameters=[self.gradient(f"{name}.{leaf}") for leaf in leaves],
            workspace_bytes=work,
            backward_workspace_bytes=2 * work,
        )

    def enter(self, x: Value) -> Value:
        """Return whole activations, as column-parallel layers need them; the caller holds both."""
        if self.tp == 1:
            return x.hold()
        part = x.hold()
        if self.casts:
            part.drop()
            part = self.tape.operation(x.size_bytes // self.stream_bytes * self.compute_bytes, [(x, x.size_bytes)])
        if self.parallel.sequence_parallel:
            out = self.join(part, self.batch > 1, sums=True)
        else:
            out = self.tape.operation(0, [(part, part.size_bytes)])
        part.drop()
        return out

    def join(self, x: Value, copies: bool, sums: bool = False) -> Value:
        """Gather the parts of all ranks.

        Non-contiguous parts are copied once more (`copies`); with `sums` backward reduce-scatters instead of slicing.
        """
        whole, graded = x.size_bytes * self.tp, [(x, x.size_bytes)]
        work = whole if copies else 0
        return self.tape.operation(whole, graded, workspace_bytes=work, backward_workspace_bytes=work * sums)

    def leave(self, x: Value) -> Value:
        """Sum `x` over the ranks, of which each keeps its part with sequence_parallel, and release it."""
        if self.tp == 1:
            return x
        if not self.parallel.sequence_parallel:
            return self.tape.then(x, x.size_bytes, 0)
        work = x.size_bytes if self.batch > 1 else 0
        return self.tape.then(x, x.size_bytes // self.tp, workspace_bytes=work, backward_workspace_bytes=work)

    def row(self, x: Value, name: str) -> Value:
        """Return the sum over the ranks of a row-parallel layer's products, to which the bias is added."""
        width = self.shape.config.width
        y = self.leave(self.linear(x, name, width, self.tokens))
        if self.tp == 1 or plain(f"{name}.bias") not in self.shapes:
            return y
        narrow = y.size_bytes if self.casts else 0
        return self.tape.then(y, self.stream_size, narrow, parameters=[self.gradient(f"{name}.bias")])

    def linear(self, x: Value, name: str, features: int, rows: int, category: Category = "activations") -> Value:
        """Return the output of a matrix product, which saves its input, or 16-bit copies of input and weight."""
        parameters = [self.gradient(f"{name}.weight")]
        if plain(f"{name}.bias") in self.shapes and (self.tp == 1 or name.rpartition(".")[2] not in ROW):
            parameters.append(self.gradient(f"{name}.bias"))
        out_bytes = rows * features * self.compute_bytes
        if not self.casts:
            return self.tape.operation(out_bytes, [(x, x.size_bytes)], [x], parameters=parameters, category=category)
        elements = prod(self.shapes[plain(f"{name}.weight")]) // features * rows
        wide = x.size_bytes == elements * self.stream_bytes
        narrow = self.tape.operation(elements * self.compute_bytes, [(x, x.size_bytes)]) if wide else x
        weight = Value(self._cast(f"{name}.weight"), 0)
        out = self.tape.operation(
            out_bytes,
            [(narrow, narrow.size_bytes)],
            saves=[narrow, weight],
            parameters=parameters,
            narrow_bytes=sum(size for _, size in parameters) // self.stream_bytes * self.compute_bytes,
            category=category,
        )
        weight.drop()
        if wide:
            narrow.drop()
        return out

    def attention(self, inputs: tuple[Value, ...], sizes: tuple[int, ...], dropout: float) -> Value:
        """Apply flash attention (Dao et al. 2022), which keeps inputs, output and one number per row.

        With dropout the CPU has no such kernel: the s x s matrix is saved as softmax, as mask and after dropout.
        `inputs` are queries, keys and values, or what they are views of; `sizes` are the bytes of their gradients.
        """
        config, heads = self.shape.config, self.shape.config.heads // self.tp
        rows = self.tokens * heads
        saved, queries = rows * FLOAT_BYTES, rows * (config.width // config.heads) * self.compute_bytes
        if self.parallel.cp > 1 and self.parallel.context == "ring":
            return self._ring(inputs, queries, sum(sizes) - queries, saved)
        if dropout and not self.on_cuda:
            saved = 3 * rows * self.parallel.cp * self.sequence * self.compute_bytes
        graded = list(zip(inputs, sizes))
        if self.parallel.cp == 1:
            return self.tape.operation(queries, graded, saves=inputs, saves_output=True, kept_bytes=saved)
        # Keys and values are exchanged together. Send and receive buffers exist in addition to the results.
        both = sum(sizes) - queries
        work = max(2 * queries, 3 * both)
        exchanged = self.tape.operation(sum(sizes), graded, workspace_bytes=work, backward_workspace_bytes=work)
        y = self.tape.operation(queries, [(exchanged, sum(sizes))], [exchanged], saves_output=True, kept_bytes=saved)
        work = 2 * queries
        returned = self.tape.operation(queries, [(y, queries)], workspace_bytes=work, backward_workspace_bytes=work)
        flat = self.tape.then(returned, queries, 0)
        drop(exchanged, y)
        return flat

    def _ring(self, inputs: tuple[Value, ...], queries: int, both: int, saved: int) -> Value:
        """Record ring attention on the first rank of the ring, with keys and values of `both` bytes.

        In every hop the second half of its queries attends to all received keys, while those of the next hop are
        received; in backward the float32 gradients of keys and values follow them.
        """
        wide, arriving = FLOAT_BYTES * queries // self.compute_bytes, both * min(2, self.parallel.cp - 1)
        repeated = 2 * queries if both < 2 * queries else 0  # Shared heads are expanded for every query head.
        work = max(both + repeated, arriving + queries // 2 + 3 * wide // 2)
        following = FLOAT_BYTES * both // self.compute_bytes
        back = arriving + following + queries + 4 * wide + repeated
        stacked = self.tape.operation(both, [(each, 0) for each in inputs])
        y = self.tape.operation(
            *(queries, [(stacked, queries + both)], [*inputs, stacked]),
            saves_output=True,
            kept_bytes=saved,
            workspace_bytes=work + (wide if wide > queries else 0),
            backward_workspace_bytes=back,
        )
        stacked.drop()
        return y

    def add(self, x: Value, branch: Value) -> Value:
        """Return the residual sum, which saves nothing, and release `branch`."""
        size = self.stream_size
        total = self.tape.operation(size, [(x, 0), (branch, 0 if branch.size_bytes == size else branch.size_bytes)])
        branch.drop()
        return total

    def dropout(self, x: Value, rate: float) -> Value:
        """Apply dropout, release `x`; the saved mask has a byte per element on CUDA, on the CPU the input's dtype."""
        if not rate:
            return x
        elements = self.stream_tokens * self.shape.config.width
        return self.tape.then(x, x.size_bytes, kept_bytes=elements if self.on_cuda else x.size_bytes)

    def cross_entropy(self, logits: Value) -> Value:
        """Record the float32 loss: at its peak the log-probabilities, their gradient and that of the logits coexist.

        If vocabulary-parallel, the gradient of the loss is one number. Releases `logits`.
        """
        divided = self.tp > 1 and not isinstance(self.shape.config, EncoderConfig)
        if divided and not self.parallel.loss_parallel:
            part, logits = logits, self.join(logits, copies=True)
            part.drop()
        size = logits.size_bytes // self.compute_bytes * FLOAT_BYTES
        if self.compute_bytes == FLOAT_BYTES:
            flat = self.tape.operation(0, [(logits, 0)])
        else:
            flat = self.tape.operation(size, [(logits, logits.size_bytes)], category="logits")
        by_parts = divided and self.parallel.loss_parallel
        saved = PER_TARGET_BYTES * self.tokens if by_parts else 0
        logs = self.tape.operation(size, [(flat, size)], saves_output=True, kept_bytes=saved, category="logits")
        loss = self.tape.operation(FLOAT_BYTES, [(logs, 0 if by_parts else size)], category="logits")
        drop(logits, flat, logs)
        return loss

    def gradient(self, name: str) -> tuple[str, int]:
        """Return a parameter's name and the bytes of its gradient, which has 16 bits if FSDP casts whole units."""
        return name, prod(self.shapes[plain(name)]) * self.stream_bytes

    def _cast(self, name: str) -> Buffer:
        """Return autocast's copy of a weight, made once; the local part of a DTensor is none of the leaves it keeps."""
        copy = self.cast_weights.get(name)
        if copy is None:
            size = prod(self.shapes[plain(name)]) * self.compute_bytes
            copy = self.tape.ledger.allocate("activations", size)
            if self.tp > 1:
                return copy
            self.cast_weights[name] = copy
        return copy.hold()


def plain(name: str) -> str:
    """Return a parameter's name without the number of its block."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name
