"""`fsdp`: PyTorch's fully_shard (FSDP2), one unit per block and one for the rest. Zero2, zero3 and hsdp build on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from dtk.parallel.mesh import Mesh
from dtk.strategies.base import Strategy, local, materialise, model_shapes
from dtk.strategies.declared import ITEM_BYTES, Collective, ModelShapes, padded_elements, reduced_item_bytes
from dtk.strategies.traits import StrategyConfig, TableRow, Traits

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from dtk.config.schema import PrecisionConfig
    from dtk.strategies.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPConfig(StrategyConfig):
    """`fully_shard` per block (PyTorch FSDP2): parameters, gradients and optimizer state sharded."""

    traits = Traits(
        sharded=("parameters", "gradients", "optimizer_state"),
        gradients_in="units",
        collectives=("all_gather", "reduce_scatter"),
        simplicity=6,
    )
    row = TableRow(
        "PyTorch's name for zero3: fully_shard per block",
        "P/N",
        "P/N",
        "K/N",
        "2 A all_gathers (the root unit: A) and one reduce_scatter per unit",
        "2 A P (N-1)/N + P (N-1)/N",
        "the model does not fit on one device",
    )
    limits = {"blocks_per_unit": (0, math.inf), "prefetch_depth": (0, math.inf)}

    name: Literal["fsdp"] = "fsdp"
    reshard_after_forward: bool = True
    """Free gathered parameters after forward and gather them again in backward (ZeRO-3); false: ZeRO-2."""
    blocks_per_unit: int = 1
    """Blocks gathered together; 0 = the whole model as one unit."""
    prefetch_depth: int = 1
    """Units gathered ahead of the one in use."""
    cpu_offload: bool = False
    """Parameters, gradients and optimizer state live in host memory."""

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Gathers in every micro-batch (twice for units that reshard), one reduce_scatter per unit and step.

        The root unit (embeddings, final norm, head) is never resharded after forward: FSDP2 keeps it,
        as backward would gather it again at once. A rank that holds whole parameters gathers and scatters nothing.
        """
        shards = mesh.dp_shard
        if shards == 1:
            return []
        units = shapes.units(self.blocks_per_unit)
        compute = ITEM_BYTES[precision.compute_dtype]
        gathers = 2 if self.reshard_after_forward else 1
        blocks = sum(padded_elements(unit, shards) for unit in units)
        rest = padded_elements(shapes.root(self.blocks_per_unit), shards)
        gathered = accumulation_steps * (gathers * blocks + rest) * compute
        return [
            Collective("all_gather", "dp_shard", accumulation_steps * (gathers * len(units) + 1), gathered),
            Collective("reduce_scatter", "dp_shard", len(units) + 1, (blocks + rest) * reduced_item_bytes(precision)),
        ]

    def declare_clip(self) -> tuple[Collective, ...]:
        """Declare the all-reduce of the sum of squares over the shards, one float32."""
        return (Collective("all_reduce", "dp_shard", 1, 4),)


class FSDP(Strategy):
    """Fully sharded data parallel (Zhao et al. 2023) over one mesh dimension, `dp_shard`.

    `reshard_after_forward=false` keeps gathered parameters until backward: one all_gather per unit
    instead of two, at the price of whole parameters in memory in between (ZeRO-2-like).
    """

    def shard_mesh(self) -> DeviceMesh:
        """Return the mesh over which parameters are sharded, which has one dimension, dp_shard."""
        from dtk.parallel.context import data_parallel_mesh

        return data_parallel_mesh(self.context, ("dp_shard",))

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Shard on the meta device first, then give memory and values to this rank's shards only."""
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        from dtk.parallel.precision import mixed_precision_policy
        from dtk.parallel.regions import observed

        mesh = self.shard_mesh()
        self.shard_group = mesh.get_group("dp_shard")
        on_cuda = self.context.device.type == "cuda"
        arguments: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": mixed_precision_policy(self.precision),
            "offload_policy": CPUOffloadPolicy(pin_memory=on_cuda) if self.config.cpu_offload else OffloadPolicy(),
        }
        storage = torch.device("cpu") if self.config.cpu_offload else self.context.device
        if not any(p.is_meta for p in model.parameters()):
            model.to(storage)
        units = self._units(model)
        for unit in units:
            fully_shard(unit, reshard_after_forward=self.config.reshard_after_forward, **arguments)
        # Left to itself FSDP2 keeps the root unit from forward to backward, which needs it first.
        fully_shard(model, **arguments)
        materialise(model, storage, fill)
        heads = [cast("FSDPModule", unit[0]) for unit in units]
        self._prefetch(heads)
        if observed():
            self._mark([*heads, cast("FSDPModule", model)])
        return model

    def _units(self, model: nn.Module) -> list[list[nn.Module]]:
        """Consecutive blocks that are gathered together; none when the whole model is one unit."""
        size = self.config.blocks_per_unit
        blocks = list(cast("Iterable[nn.Module]", getattr(model, "blocks", ())))
        return [blocks[i : i + size] for i in range(0, len(blocks), size)] if size else []

    def _prefetch(self, units: Sequence[FSDPModule]) -> None:
        """Name the units to gather ahead; a depth of one is the library's own default."""
        depth = self.config.prefetch_depth
        if depth == 1:
            return
        for i, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(list(units[i + 1 : i + 1 + depth]))
            unit.set_modules_to_backward_prefetch(list(reversed(units[max(0, i - depth) : i])))

    def _mark(self, modules: Iterable[FSDPModule]) -> None:
        """Open a communication region around every gather and reduction."""
        from dtk.parallel.marked_comm import MarkedAllGather, MarkedReduceScatter

        for module in modules:
            module.set_custom_all_gather(MarkedAllGather())
            module.set_custom_reduce_scatter(MarkedReduceScatter())

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Reduce gradients in the last micro-batch only; unsharded gradients wait until then."""
        module = cast("FSDPModule", wrapped)
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        return nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Nothing: the mixed-precision policy casts."""
        return nullcontext()

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Square, sum over the shards, root: one all_reduce of 4 bytes."""
        import torch
        import torch.distributed as dist

        from dtk.parallel.regions import communication

        grads = [local(p.grad) for p in parameters if p.grad is not None]
        squared = torch.nn.utils.get_total_norm(grads).float().square().to(self.context.device)
        with communication("all_reduce", squared.nbytes, "dp_shard"):
            dist.all_reduce(squared, group=self.shard_group)
        return squared.sqrt()

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Scale this rank's shards where they lie."""
        import torch

        grads = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(grads, factor.to(grads[0].device))

    @property
    def reduce_dtype(self) -> str | None:
        """That of the mixed-precision policy."""
        from dtk.parallel.precision import mixed_precision_policy

        dtype = mixed_precision_policy(self.precision).reduce_dtype
        whole = super().reduce_dtype
        return whole if dtype is None or whole is None else str(dtype).removeprefix("torch.")

    def release(self, model: nn.Module) -> None:
        """Reshard the root unit: only backward would, and evaluation has none."""
        cast("FSDPModule", model).reshard()

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """As declared, for all parameters: those without gradients are gathered too."""
        declared: list[Collective] = self.config.declare(
            model_shapes(model, frozen=True), self.context.mesh, self.precision, accumulation_steps
        )
        return declared


CONFIG, STRATEGY = FSDPConfig, FSDP
