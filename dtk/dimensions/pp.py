"""Pipeline parallel: the model is split by blocks into stages. Stages keep the global names of their parameters, since
names select initial values and checkpoint entries. `before` and `after` of a model list its modules that run before and
after the blocks; a module in both (tied weights) is held by the first and the last stage.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dtk.parallel.collectives import Axis, all_reduce_
from dtk.parallel.pipeline import OUTSTANDING, RECEIVES, SENDS, Order
from dtk.parallel.placement import mark_copy
from dtk.parallel.regions import communication
from dtk.sharding.base import local
from dtk.sharding.declared import Collective


def cut(model: Any, stage: int, cuts: Sequence[range]) -> nn.Module:
    """Remove the modules of other stages in place; the forward then accepts and returns the residual stream."""
    for i in {*range(len(model.blocks))} - {*cuts[stage]}:
        del model.blocks._modules[str(i)]  # Deleting from the ModuleList would renumber the remaining blocks.
    used = {*(model.before if stage == 0 else ()), *(model.after if stage == len(cuts) - 1 else ())}
    for name in {*model.before, *model.after} - used:
        setattr(model, name, None)
    return model  # type: ignore[no-any-return]


def joined(stages: Sequence[nn.Module]) -> nn.Module:
    """Return one module with all modules of a rank's stages under their global names; its forward is never called."""
    if len(stages) == 1:
        return stages[0]
    whole, blocks = nn.Module(), nn.ModuleList()
    for stage in stages:
        for name, module in stage.named_children():
            if name != "blocks":
                whole.add_module(name, module)
        blocks._modules.update(stage.blocks._modules)  # type: ignore[union-attr, arg-type]
    whole.blocks = blocks
    if (heads := getattr(stages[0], "fused_heads", None)) is not None:
        whole.fused_heads = heads
    return whole


@dataclass(frozen=True, slots=True)
class Shared:
    """Parameters that both the first and the last stage hold, each with the gradient of its use in that stage."""

    parameters: tuple[nn.Parameter, ...]
    ends: Axis
    """The first and the last rank of the pipeline."""

    def sum_gradients(self) -> None:
        """Sum the gradients of both ends; called once per step, when gradients are reduced over data-parallel ranks."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                all_reduce_(local(parameter.grad), self.ends)

    def declare(self) -> list[Collective]:
        """Return the collectives of `sum_gradients`."""
        sizes = [local(parameter).nbytes for parameter in self.parameters]
        return [Collective("all_reduce", "pp", len(sizes), sum(sizes))]


def shared_parameters(model: nn.Module, axis: Axis, ranks: list[int], names: Iterable[str]) -> Shared | None:
    """Return this rank's parameters of the modules `names` at both ends (they count on the first stage), or None."""
    names = tuple(names)
    if not names or axis.rank not in (0, axis.size - 1):
        return None
    parameters = tuple(parameter for name in names for parameter in getattr(model, name).parameters())
    for parameter in parameters:
        mark_copy(parameter, index=int(axis.rank > 0), count=2)
    group = axis.group
    if axis.size > 2:
        group = dist.new_group([ranks[0], ranks[-1]], use_local_synchronization=True, group_desc="pp_shared")
    return Shared(parameters, Axis("pp", group, int(axis.rank > 0), 2))


@dataclass(slots=True)
class Messages:
    """Point-to-point messages between stages: sends are asynchronous, receives complete where the data is needed."""

    axis: Axis
    sent: deque[tuple[Tensor, dist.Work]] = field(default_factory=deque)  # Tensors stay alive until they are sent.

    def send(self, tensor: Tensor, to: int) -> None:
        """Send a tensor to a rank of the pipeline, asynchronously."""
        while len(self.sent) >= OUTSTANDING:
            self.sent.popleft()[1].wait()
        with communication("send", tensor.nbytes, self.axis.name):
            self.sent.append((tensor, self._issue(dist.isend, tensor, to)))

    def expect(self, buffer: Tensor, source: int) -> dist.Work:
        """Post a receive from a rank of the pipeline; `wait` completes it."""
        return self._issue(dist.irecv, buffer, source)

    def wait(self, buffer: Tensor, work: dist.Work) -> None:
        """Wait until the buffer is received."""
        with communication("recv", buffer.nbytes, self.axis.name):
            work.wait()

    def flush(self) -> None:
        """Wait until all sends are complete."""
        while self.sent:
            self.sent.popleft()[1].wait()

    def _issue(self, op: object, tensor: Tensor, peer: int) -> dist.Work:
        # A batch of one: NCCL then uses the group's communicator, in the order that all ranks agreed on.
        each = dist.P2POp(op, tensor, group=self.axis.group, group_peer=peer)  # type: ignore[arg-type]
        return dist.batch_isend_irecv([each])[0]


def declare_messages(order: Order, size_bytes: int) -> list[Collective]:
    """Return what a rank sends and receives in a step, each message of `size_bytes`."""
    counts = {op: sum(a.kind in kinds for a in order) for op, kinds in (("send", SENDS), ("recv", RECEIVES))}
    return [Collective(op, "pp", count, count * size_bytes) for op, count in counts.items() if count]
