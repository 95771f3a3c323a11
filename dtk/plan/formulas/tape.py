"""Bytes in use while a step is walked through, and what autograd keeps and frees: operations are recorded in forward
and walked in reverse in backward.

Owns the life of activations and of the gradients that flow through them. Knows sizes only, no model and no strategy:
a gradient of a parameter is handed to whoever listens.

The rules are those of torch's engine: an operation frees what it saved as soon as its own backward is over; a
gradient that several operations share is added to in place only when nobody else holds it; a parameter that is used
twice gets one gradient, when the last of its uses is done.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtk.plan.prediction import Category, Memory


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that is freed when its last holder lets go."""

    ledger: "Ledger"
    category: Category
    size_bytes: int
    holders: int = 1
    copies: int = 1
    """How many like it are freed with it: those of blocks that were not walked, too."""

    def hold(self) -> "Buffer":
        """One more holder."""
        self.holders += 1
        return self

    def drop(self) -> None:
        """One holder less; the last one frees the memory."""
        self.holders -= 1
        if self.holders == 0:
            self.ledger.change(self.category, -self.copies * self.size_bytes)
            if slack := self.ledger.slack_bytes(self.size_bytes):
                self.ledger.change("allocator slack", -self.copies * slack)


class Ledger:
    """The memory of one rank.

    Args:
        granularity_bytes: what the allocator rounds every buffer up to.
    """

    def __init__(self, granularity_bytes: int = 1) -> None:
        self.granularity_bytes = granularity_bytes
        self.region = "forward"
        self.in_use: Counter[Category] = Counter()
        self.total_bytes = 0
        self.peak_bytes = 0
        self.peak_region = self.region
        self.at_peak: dict[Category, int] = {}
        self.by_region: dict[str, int] = {}

    def allocate(self, category: Category, size_bytes: int) -> Buffer:
        """Take memory; the caller is its first holder."""
        if slack := self.slack_bytes(size_bytes):
            self.in_use["allocator slack"] += slack
            self.total_bytes += slack
        self.change(category, size_bytes)
        return Buffer(self, category, size_bytes)

    def slack_bytes(self, size_bytes: int) -> int:
        """Return the bytes that rounding adds to a buffer."""
        return -size_bytes % self.granularity_bytes

    def change(self, category: Category, size_bytes: int) -> None:
        """Take or give back memory, and note the highest use."""
        self.in_use[category] += size_bytes
        self.total_bytes += size_bytes
        if self.total_bytes > self.by_region.get(self.region, -1):
            self.by_region[self.region] = self.total_bytes
        if self.total_bytes > self.peak_bytes:
            self.peak_bytes = self.total_bytes
            self.peak_region = self.region
            self.at_peak = dict(self.in_use)

    def copy(self, buffer: Buffer, times: int) -> None:
        """Take so many more of a buffer; all are freed together. The highest use is not noted."""
        more = times * buffer.copies
        buffer.copies += more
        slack = self.slack_bytes(buffer.size_bytes)
        self.shift({buffer.category: buffer.size_bytes, "allocator slack": slack}, more)

    def shift(self, delta_bytes: Mapping[Category, int], times: int) -> None:
        """Take or give back so many times so much, without noting the highest use."""
        for category, size in delta_bytes.items():
            self.in_use[category] += times * size
            self.total_bytes += times * size

    def memory(self, rank: int, host_bytes: int, file_bytes: int = 0, paged_bytes: int = 0) -> Memory:
        """Return the highest use so far as the memory of this rank."""
        at_peak = {category: size for category, size in self.at_peak.items() if size}
        return Memory(rank, at_peak, self.peak_region, self.by_region, host_bytes, file_bytes, paged_bytes)

    def enter(self, region: str) -> None:
        """Continue in another region of the step."""
        self.region = region
        self.change("temporaries", 0)


GradientListener = Callable[[str, Buffer], None]
"""Called with a parameter's name and its whole gradient; the listener now holds that buffer."""


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the forward pass. `buffer` is None for what costs nothing: token ids, parameters, constants."""

    buffer: Buffer | None
    size_bytes: int

    @property
    def category(self) -> Category:
        """What it counts as; its gradient counts as the same."""
        return self.buffer.category if self.buffer is not None else "activations"

    def held(self) -> "Value":
        """Return itself with one more hold."""
        if self.buffer is not None:
            self.buffer.hold()
        return self

    def drop(self) -> None:
        """Release the hold that the computing code has on the buffer."""
        if self.buffer is not None:
            self.buffer.drop()


def drop(*held: Value | Buffer) -> None:
    """Release one hold on each of these."""
    for each in held:
        each.drop()


@dataclass(slots=True)
class Node:
    """One recorded operation."""

    out: Value
    inputs: tuple[tuple[Value, int], ...]
    """What gets a gradient, and its size in bytes; 0 = the incoming gradient itself, or a view of it."""
    saved: list[Buffer]
    parameters: tuple[tuple[str, int], ...]
    """Name and gradient bytes."""
    workspace_bytes: int
    narrow_bytes: int
    more: tuple[Value, ...] = ()
    """Results beside `out`."""
    parts: bool = False
    """Whether it uses parts of its parameters, whose gradients are joined when the last of them is there."""
    passed: Callable[[], object] | None = None
    """Called before it is undone."""


@dataclass(slots=True)
class Tape:
    """Records operations and walks them back."""

    ledger: Ledger
    recording: bool = True
    """Off while a checkpointed block runs: nothing is saved."""
    nodes: list[Node] = field(default_factory=list)
    gradients: dict[Value, Buffer] = field(default_factory=dict)
    pending: dict[str, list[Buffer]] = field(default_factory=dict)
    """Gradients of parameters that have another use still to come."""
    uses: dict[str, int] = field(default_factory=dict)
    halves: list[tuple[Node, list[Buffer]]] | None = None
    """Where backward leaves the gradients of parameters to `weights`: its nodes, and what it keeps for them."""

    def operation(
        self,
        out_bytes: int,
        inputs: Sequence[tuple[Value, int]],
        saves: Sequence[Value] = (),
        kept_bytes: int = 0,
        parameters: Sequence[tuple[str, int]] = (),
        saves_output: bool = False,
        workspace_bytes: int = 0,
        backward_workspace_bytes: int = 0,
        narrow_bytes: int = 0,
        category: Category = "activations",
        parts: bool = False,
        passed: Callable[[], object] | None = None,
    ) -> Value:
        """Run one operation; the caller holds the result.

        Args:
            out_bytes: size of the result; 0 = a view of the (only) input.
            inputs: values that get a gradient, with its bytes; 0 = the incoming gradient is passed on.
            saves: values kept for backward.
            kept_bytes: what else is kept, such as a copy in another type, statistics or a mask.
            parameters: names and gradient bytes.
            saves_output: whether the result is kept for backward.
            workspace_bytes: needed while it runs.
            backward_workspace_bytes: needed while its backward runs.
            narrow_bytes: gradients of the parameters in the type they are computed in, widened when that is over.
            category: of the result.
            parts: whether of the parameters it uses parts, whose gradients are joined.
            passed: called when backward arrives.
        """
        buffer = self.ledger.allocate(category, out_bytes) if out_bytes else None
        if buffer is None and inputs[0][0].buffer is not None:
            buffer = inputs[0][0].buffer.hold()
        out = Value(buffer, out_bytes or inputs[0][0].size_bytes)
        passing = workspace_bytes + (0 if self.recording else kept_bytes)
        self.ledger.allocate("temporaries", passing).drop()
        if not self.recording:
            return out
        values = [*saves, out] if saves_output else saves
        saved = [value.buffer.hold() for value in values if value.buffer is not None]
        if kept_bytes:
            saved.append(self.ledger.allocate("activations", kept_bytes))
        for name, _ in parameters:
            self.uses[name] = self.uses.get(name, 0) + 1
        sizes = backward_workspace_bytes, narrow_bytes
        self.nodes.append(Node(out, tuple(inputs), saved, tuple(parameters), *sizes, (), parts, passed))
        return out

    def then(self, value: Value, out_bytes: int, gradient: int | None = None, **others: Any) -> Value:
        """Run an operation on one value, whose gradient is by default as large as it, and release it."""
        out = self.operation(out_bytes, [(value, value.size_bytes if gradient is None else gradient)], **others)
        value.drop()
        return out

    def split(self, whole: Value, parts: int) -> list[Value]:
        """Return equal parts of a value as views; backward joins their gradients in a new tensor."""
        views = [Value(whole.held().buffer, whole.size_bytes // parts) for _ in range(parts)]
        if self.recording:
            self.nodes.append(Node(views[0], ((whole, whole.size_bytes),), [], (), 0, 0, tuple(views[1:])))
        return views

    def backward(self, listener: GradientListener, down_to: int = 0) -> None:
        """Walk back to the node of that number; gradients that flow on stay."""
        while len(self.nodes) > down_to:
            self._step_back(self.nodes.pop(), listener)

    def _step_back(self, node: Node, listener: GradientListener) -> None:
        """Undo one operation. Sums of gradients are new tensors: a transposed one is not added to."""
        if node.passed is not None:
            node.passed()
        incoming, *more = (self.gradients.pop(each) for each in (node.out, *node.more))
        workspace = self.ledger.allocate("temporaries", node.workspace_bytes)
        produced = [
            incoming.hold() if size == 0 else self.ledger.allocate(value.category, size) for value, size in node.inputs
        ]
        of_parameters: list[tuple[str, Buffer]] = []
        if self.halves is None:
            of_parameters = self._of_parameters(node, [workspace, *node.saved, incoming, *more])
        else:
            drop(workspace, *(() if node.parameters else (incoming, *more)))
            self.halves.append((node, [*node.saved, incoming] if node.parameters else node.saved))
        for (value, _), buffer in zip(node.inputs, produced):
            self.seed(value, buffer)
        self._hand_over(of_parameters, node.parts, listener)

    def weights(self, listener: GradientListener) -> None:
        """Compute the gradients of parameters that backward left; what no parameter needs is freed at the end."""
        halves, self.halves = self.halves or [], None
        names = [*dict.fromkeys(name for node, _ in halves for name, _ in node.parameters)]
        used = [(names.index(node.parameters[0][0]), node, kept) for node, kept in halves if node.parameters]
        for _, node, kept in sorted(used, key=lambda each: each[0]):  # Parameter by parameter.
            self._hand_over(self._of_parameters(node, kept), node.parts, listener)
        drop(*(buffer for node, kept in halves if not node.parameters for buffer in kept))

    def _of_parameters(self, node: Node, passed: list[Buffer]) -> list[tuple[str, Buffer]]:
        """Return the gradients of an operation's parameters, and free what the operation no longer needs."""
        narrow = self.ledger.allocate("gradients", node.narrow_bytes)
        if node.narrow_bytes:  # Widened when the operation is over.
            drop(*passed)
        of_parameters = [(name, self.ledger.allocate("gradients", size)) for name, size in node.parameters]
        drop(narrow, *(() if node.narrow_bytes else passed))
        return of_parameters

    def _hand_over(self, of_parameters: Sequence[tuple[str, Buffer]], parts: bool, listener: GradientListener) -> None:
        """Give each gradient of a parameter, when it is the sum over all its uses, to the listener, a bias first."""
        for name, gradient in reversed(of_parameters):
            self.uses[name] -= 1
            gradients = [*self.pending.pop(name, ()), gradient]
            if len(gradients) > 1 and not (parts and self.uses[name]):
                size = sum(each.size_bytes for each in gradients) if parts else gradient.size_bytes
                total = self.ledger.allocate("gradients", size)
                drop(*gradients)
                gradients = [total]
            if self.uses[name]:
                self.pending[name] = gradients
            else:
                listener(name, *gradients)

    def seed(self, value: Value, gradient: Buffer) -> None:
        """Add to the gradient of a value; of the last one something outside the tape computes it."""
        before = self.gradients.pop(value, None)
        if before is None:
            self.gradients[value] = gradient
        elif before.holders == 1:
            gradient.drop()
            self.gradients[value] = before
        else:
            self.gradients[value] = self.ledger.allocate("activations", gradient.size_bytes)
            drop(gradient, before)
