"""Bytes in use over a step: operations are recorded in forward and replayed in reverse in backward, as by autograd.

Handles sizes only, independent of model and strategy: the gradient of a parameter is passed to a listener.

The rules are those of torch's engine: an operation frees its saved tensors as soon as its own backward has finished;
a gradient that several operations share is accumulated in place only if nothing else holds it; a parameter that is
used several times gets one gradient, after the last of its uses.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtk.plan.formulas.prediction import Category, Memory


@dataclass(slots=True, eq=False)
class Buffer:
    """Reference-counted memory, which is freed when its last holder drops it."""

    ledger: "Ledger"
    category: Category
    size_bytes: int
    holders: int = 1
    copies: int = 1
    """Number of equal buffers that are freed with it, including those of blocks that were not walked."""

    def hold(self) -> "Buffer":
        """Add a holder and return the buffer."""
        self.holders += 1
        return self

    def drop(self) -> None:
        """Remove a holder; the last one frees the memory."""
        self.holders -= 1
        if self.holders == 0:
            self.ledger.change(self.category, -self.copies * self.size_bytes)
            if slack := self.ledger.slack_bytes(self.size_bytes):
                self.ledger.change("allocator slack", -self.copies * slack)


class Ledger:
    """Memory accounting of one rank, whose allocator rounds every buffer up to a multiple of `granularity_bytes`."""

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
        """Allocate memory; the caller is its first holder."""
        if slack := self.slack_bytes(size_bytes):
            self.in_use["allocator slack"] += slack
            self.total_bytes += slack
        self.change(category, size_bytes)
        return Buffer(self, category, size_bytes)

    def slack_bytes(self, size_bytes: int) -> int:
        """Return the bytes that rounding adds to a buffer."""
        return -size_bytes % self.granularity_bytes

    def change(self, category: Category, size_bytes: int) -> None:
        """Allocate or free memory, and update the peak."""
        self.in_use[category] += size_bytes
        self.total_bytes += size_bytes
        if self.total_bytes > self.by_region.get(self.region, -1):
            self.by_region[self.region] = self.total_bytes
        if self.total_bytes > self.peak_bytes:
            self.peak_bytes = self.total_bytes
            self.peak_region = self.region
            self.at_peak = dict(self.in_use)

    def copy(self, buffer: Buffer, times: int) -> None:
        """Allocate `times` more of a buffer, all freed together, without updating the peak."""
        more = times * buffer.copies
        buffer.copies += more
        slack = self.slack_bytes(buffer.size_bytes)
        self.shift({buffer.category: buffer.size_bytes, "allocator slack": slack}, more)

    def shift(self, delta_bytes: Mapping[Category, int], times: int) -> None:
        """Add `delta_bytes` `times` times, without updating the peak."""
        for category, size in delta_bytes.items():
            self.in_use[category] += times * size
            self.total_bytes += times * size

    def memory(self, rank: int, host_bytes: int, file_bytes: int = 0, paged_bytes: int = 0) -> Memory:
        """Return the peak so far as the memory of this rank."""
        at_peak = {category: size for category, size in self.at_peak.items() if size}
        return Memory(rank, at_peak, self.peak_region, self.by_region, host_bytes, file_bytes, paged_bytes)

    def enter(self, region: str) -> None:
        """Enter another region of the step."""
        self.region = region
        self.change("temporaries", 0)


GradientListener = Callable[[str, Buffer], None]
"""Called with a parameter's name and its full gradient; the listener then holds that buffer."""


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the forward pass; its gradient has the category of its buffer. Views share a buffer."""

    buffer: Buffer
    size_bytes: int

    def hold(self) -> "Value":
        """Add a holder and return the value."""
        self.buffer.hold()
        return self

    def drop(self) -> None:
        """Release the computing code's hold on the buffer."""
        self.buffer.drop()


def drop(*holders: Value | Buffer) -> None:
    """Release one hold on each argument."""
    for each in holders:
        each.drop()


@dataclass(slots=True)
class Node:
    """One recorded operation."""

    out: Value
    inputs: tuple[tuple[Value, int], ...]
    """Inputs that get a gradient, and its bytes; 0 if it is the incoming gradient or a view of it."""
    saved: list[Buffer]
    parameters: tuple[tuple[str, int], ...]
    """Names of the parameters and their gradient bytes."""
    workspace_bytes: int
    narrow_bytes: int
    more: tuple[Value, ...] = ()
    """Further outputs besides `out`."""
    parts: bool = False
    """Whether it uses slices of its parameters, whose gradients are joined once all of them exist."""
    before_backward: Callable[[], object] | None = None
    """Called before its backward."""


@dataclass(slots=True)
class Tape:
    """Records operations and runs them backward."""

    ledger: Ledger
    recording: bool = True
    """Whether operations save tensors; False while a checkpointed block runs."""
    nodes: list[Node] = field(default_factory=list)
    gradients: dict[Value, Buffer] = field(default_factory=dict)
    pending: dict[str, list[Buffer]] = field(default_factory=dict)
    """Gradients of parameters that have further uses in this backward."""
    uses: dict[str, int] = field(default_factory=dict)
    halves: list[tuple[Node, list[Buffer]]] | None = None
    """Nodes whose parameter gradients a split backward leaves to `weights`, with the buffers kept for them."""

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
        before_backward: Callable[[], object] | None = None,
    ) -> Value:
        """Run one operation; the caller holds the result.

        Args:
            out_bytes: size of the result; 0 if it is a view of the only input.
            inputs: values that get a gradient, and its bytes; 0 passes the incoming gradient on.
            saves: values kept for backward.
            kept_bytes: further bytes kept for backward, such as a copy in another dtype, statistics or a mask.
            parameters: names of the parameters and their gradient bytes.
            saves_output: whether the result is kept for backward.
            workspace_bytes: temporary bytes of its forward.
            backward_workspace_bytes: temporary bytes of its backward.
            narrow_bytes: parameter gradients in the compute dtype, which are cast at the end of its backward.
            category: memory category of the result.
            parts: whether it uses slices of its parameters, whose gradients are joined.
            before_backward: called before its backward.
        """
        buffer = self.ledger.allocate(category, out_bytes) if out_bytes else inputs[0][0].buffer.hold()
        out = Value(buffer, out_bytes or inputs[0][0].size_bytes)
        passing = workspace_bytes + (0 if self.recording else kept_bytes)
        self.ledger.allocate("temporaries", passing).drop()
        if not self.recording:
            return out
        values = [*saves, out] if saves_output else saves
        saved = [value.buffer.hold() for value in values]
        if kept_bytes:
            saved.append(self.ledger.allocate("activations", kept_bytes))
        for name, _ in parameters:
            self.uses[name] = self.uses.get(name, 0) + 1
        sizes = backward_workspace_bytes, narrow_bytes
        self.nodes.append(Node(out, tuple(inputs), saved, tuple(parameters), *sizes, (), parts, before_backward))
        return out

    def then(self, value: Value, out_bytes: int, gradient_bytes: int | None = None, **others: Any) -> Value:
        """Run an operation on one value, whose gradient has its size by default, and release the value."""
        out = self.operation(
            out_bytes, [(value, value.size_bytes if gradient_bytes is None else gradient_bytes)], **others
        )
        value.drop()
        return out

    def split(self, whole: Value, parts: int) -> list[Value]:
        """Return equal slices of a value as views; backward joins their gradients in a new tensor."""
        views = [Value(whole.hold().buffer, whole.size_bytes // parts) for _ in range(parts)]
        if self.recording:
            self.nodes.append(Node(views[0], ((whole, whole.size_bytes),), [], (), 0, 0, tuple(views[1:])))
        return views

    def backward(self, listener: GradientListener, down_to: int = 0) -> None:
        """Run backward down to this node index; gradients of its inputs stay pending.

        Sums of gradients are new tensors: transposed ones are not accumulated into.
        """
        while len(self.nodes) > down_to:
            node = self.nodes.pop()
            if node.before_backward is not None:
                node.before_backward()
            incoming, *more = (self.gradients.pop(each) for each in (node.out, *node.more))
            workspace = self.ledger.allocate("temporaries", node.workspace_bytes)
            produced = [
                incoming.hold() if size == 0 else self.ledger.allocate(value.buffer.category, size)
                for value, size in node.inputs
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
        """Compute the parameter gradients that a split backward left; the rest is freed at the end."""
        halves, self.halves = self.halves or [], None
        names = [*dict.fromkeys(name for node, _ in halves for name, _ in node.parameters)]
        used = [(names.index(node.parameters[0][0]), node, kept) for node, kept in halves if node.parameters]
        for _, node, kept in sorted(used, key=lambda each: each[0]):  # One parameter at a time.
            self._hand_over(self._of_parameters(node, kept), node.parts, listener)
        drop(*(buffer for node, kept in halves if not node.parameters for buffer in kept))

    def _of_parameters(self, node: Node, saved: list[Buffer]) -> list[tuple[str, Buffer]]:
        """Return the gradients of an operation's parameters, and free what the operation no longer needs."""
        narrow = self.ledger.allocate("gradients", node.narrow_bytes)
        if node.narrow_bytes:  # They are cast at the end of the operation.
            drop(*saved)
        of_parameters = [(name, self.ledger.allocate("gradients", size)) for name, size in node.parameters]
        drop(narrow, *(() if node.narrow_bytes else saved))
        return of_parameters

    def _hand_over(self, of_parameters: Sequence[tuple[str, Buffer]], parts: bool, listener: GradientListener) -> None:
        """Pass each complete parameter gradient, summed over all uses, to the listener, biases first."""
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
        """Accumulate into the gradient of a value; also called for the output at which a backward starts."""
        before = self.gradients.pop(value, None)
        if before is None:
            self.gradients[value] = gradient
        elif before.holders == 1:
            gradient.drop()
            self.gradients[value] = before
        else:
            self.gradients[value] = self.ledger.allocate("activations", gradient.size_bytes)
            drop(gradient, before)
