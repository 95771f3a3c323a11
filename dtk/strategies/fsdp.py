"""`fsdp`: PyTorch's fully_shard (FSDP2), one unit per block and one for the rest. Zero2, zero3 and hsdp build on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from dtk.parallel.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.strategies.base import Strategy, local, materialise, model_shapes
from dtk.strategies.declared import ITEM_BYTES, Collective, ModelShapes, padded_elements, reduced_item_bytes
from dtk.strategies.traits import StrategyConfig, TableRow, Traits

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.fsdp import FSDPModule

    from dtk.strategies.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPConfig(StrategyConfig):
    """`fully_shard` per block (PyTorch FSDP2): parameters, gradients and optimizer state sharded."""

    traits = Traits(
        sharded=("parameters", "gradients", "optimizer_state"),
        gradients_in="units",
        collectives=("all_gather", "reduce_scatter"),
        always_grouped=("dp_shard",),
        dimensions=("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep"),
        simplicity=6,
    )
    row = TableRow(
        "PyTorch's name for zero3: fully_shard per block",
        *("P/N", "P/N", "K/N"),
        "2 A all_gathers (the root unit: A) and one reduce_scatter per unit",
        "2 A P (N-1)/N + P (N-1)/N",
        "the model does not fit on one device",
    )
    autocasts = False
    """Whether the forward runs under autocast on float32 parameters, and whole units are not cast."""
    gathers_once = False
    """Whether gathered parameters stay until the last backward of a step."""
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
        """Gathers in every micro-batch (twice for units that reshard) or once, one reduce_scatter per unit and step.

        The root unit (embeddings, final norm, head) is never resharded after forward: FSDP2 keeps it,
        as backward would gather it again at once. A rank that holds whole parameters gathers and scatters nothing.
        """
        units, root = shapes.units(self.blocks_per_unit), shapes.root(self.blocks_per_unit)
        compute, reduced = ITEM_BYTES[precision.compute_dtype], reduced_item_bytes(precision)
        gathers, rounds = 2 if self.reshard_after_forward else 1, 1 if self.gathers_once else accumulation_steps
        declared = []

        shards, count = mesh.dp_shard, len(units) + bool(root)  # No root in the middle of a pipeline.
        blocks, rest = sum(padded_elements(unit, shards) for unit in units), padded_elements(root, shards)
        if shards > 1:
            calls, gathered = gathers * len(units) + bool(root), (gathers * blocks + rest) * compute
            declared += [
                Collective("all_gather", "dp_shard", rounds * calls, rounds * gathered),
                Collective("reduce_scatter", "dp_shard", count, (blocks + rest) * reduced),
            ]
        if "dp_replicate" in self.grouped(mesh):
            declared.append(Collective("all_reduce", "dp_replicate", count, (blocks + rest) // shards * reduced))

        # Experts that are divided over `ep` are units of their own, over the ranks that have the same ones.
        shards, count = mesh.expert_shard, len(shapes.experts)
        experts = sum(padded_elements(unit, shards) for unit in shapes.experts)
        if count and shards > 1:
            calls = accumulation_steps * gathers
            declared += [
                Collective("all_gather", "expert_shard", calls * count, calls * experts * compute),
                Collective("reduce_scatter", "expert_shard", count, experts * reduced),
            ]
        if count and mesh.expert_replicate > 1:
            declared.append(Collective("all_reduce", "expert_replicate", count, experts // shards * reduced))
        return declared


class FSDP(Strategy):
    """Fully sharded data parallel (Zhao et al. 2023) over the mesh dimension `dp_shard`.

    The average over `dp_replicate` runs in FSDP2's all-reduce hook, on the reduced shards.
    `reshard_after_forward=false` keeps gathered parameters until backward: one all_gather per unit
    instead of two, at the price of whole parameters in memory in between (ZeRO-2-like).
    """

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Shard on the meta device first, then give memory and values to this rank's shards only."""
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        from dtk.parallel.blocks import blocks_of
        from dtk.parallel.placement import mark_copy, over_ep
        from dtk.parallel.precision import mixed_precision_policy
        from dtk.parallel.regions import observed

        on_cuda = self.context.device.type == "cuda"
        arguments: dict[str, Any] = {
            "mesh": self.device_mesh["dp_shard"],
            "mp_policy": MixedPrecisionPolicy() if self.config.autocasts else mixed_precision_policy(self.precision),
            "offload_policy": CPUOffloadPolicy(pin_memory=on_cuda) if self.config.cpu_offload else OffloadPolicy(),
        }
        storage = torch.device("cpu") if self.config.cpu_offload else self.context.device
        if not any(p.is_meta for p in model.parameters()):
            model.to(storage)
        size, blocks = self.config.blocks_per_unit, blocks_of(model)
        units = [blocks[i : i + size] for i in range(0, len(blocks), size)] if size else []
        experts = self._shard_experts(model, arguments)
        for unit in units:
            fully_shard(unit, reshard_after_forward=self.config.reshard_after_forward, **arguments)
        # Left to itself FSDP2 keeps the root unit from forward to backward, which needs it first.
        fully_shard(model, **arguments)
        materialise(model, storage, fill)
        heads = [cast("FSDPModule", unit[0]) for unit in units]
        depth = self.config.prefetch_depth
        if depth != 1:  # One is the library's own default.
            for i, head in enumerate(heads):
                head.set_modules_to_forward_prefetch(heads[i + 1 : i + 1 + depth])
                head.set_modules_to_backward_prefetch(heads[max(0, i - depth) : i][::-1])
        modules = [*heads, cast("FSDPModule", model)]
        if "dp_replicate" in self.axes:
            for module in modules:
                module.set_all_reduce_hook(self._average_over_replicas)
        if observed():
            self._mark(modules, "dp_shard")
            self._mark(experts, "expert_shard")
        if self.mesh.ep_holds_copies:
            for parameter in model.parameters():
                if not over_ep(parameter):
                    mark_copy(parameter, self.axes["ep"].rank, self.axes["ep"].size)
        return model

    def _shard_experts(self, model: nn.Module, arguments: dict[str, Any]) -> list[FSDPModule]:
        """Make units of the experts that are divided over `ep`, over the ranks that have the same ones."""
        from torch.distributed.fsdp import fully_shard

        from dtk.parallel.placement import over_ep

        experts = []
        for module in model.modules():
            if any(over_ep(parameter) for parameter in module.parameters(recurse=False)):
                over = {**arguments, "mesh": self.expert_mesh["expert_shard"]}
                unit = fully_shard(module, reshard_after_forward=self.config.reshard_after_forward, **over)
                unit.set_all_reduce_hook(self._average_over_experts)
                experts.append(unit)
        return experts

    def _average_over_experts(self, gradient: Tensor) -> None:
        """Each has the sum over the tokens of an `ep` group: add up the copies', average over all tokens."""
        from dtk.parallel.collectives import all_reduce_

        mesh = self.mesh
        if mesh.expert_replicate > 1:
            all_reduce_(gradient, self.axes["expert_replicate"])
        gradient.div_(self.loss_factor / mesh.expert_shard)

    def _average_over_replicas(self, gradient: Tensor) -> None:
        from dtk.parallel.collectives import all_reduce_

        replicas = self.axes["dp_replicate"]
        all_reduce_(gradient, replicas).div_(replicas.size)

    def _mark(self, modules: Iterable[FSDPModule], dimension: str) -> None:
        """Open a communication region around every gather and reduction over a mesh dimension."""
        from dtk.parallel.marked_comm import MarkedAllGather, MarkedReduceScatter

        for module in modules:
            module.set_custom_all_gather(MarkedAllGather(dimension))
            module.set_custom_reduce_scatter(MarkedReduceScatter(dimension))

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Reduce gradients in the last micro-batch only; unsharded gradients wait until then."""
        module = cast("FSDPModule", wrapped)
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        if self.config.gathers_once:
            module.set_reshard_after_backward(last)
        return self._completing(wrapped) if last and self.partial_over else nullcontext()

    @contextmanager
    def _completing(self, model: nn.Module) -> Iterator[None]:
        """After the last backward add up the gradients of which each rank has a part: one all_reduce per dimension."""
        import torch

        from dtk.parallel.collectives import all_reduce_

        yield
        parameters = dict(model.named_parameters())
        for dimension, names in self.partial_over.items():
            here = [parameters[name].grad for name in names if name in parameters]  # Not those of other stages.
            grads = [local(grad) for grad in here if grad is not None]
            if not grads:
                continue
            flat = all_reduce_(torch.cat([grad.reshape(-1) for grad in grads]), self.axes[dimension])
            parts = torch.split(flat, [grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])

    @property
    def stream_dtype(self) -> torch.dtype:
        """That of the mixed-precision policy, which casts whole units."""
        from dtk.parallel.precision import DTYPES

        return super().stream_dtype if self.config.autocasts else DTYPES[self.precision.compute_dtype]

    def autocast(self) -> AbstractContextManager[object]:
        """Nothing where the mixed-precision policy casts."""
        return super().autocast() if self.config.autocasts else nullcontext()

    @property
    def reduce_dtype(self) -> str | None:
        """That of the mixed-precision policy."""
        from dtk.parallel.precision import mixed_precision_policy

        dtype = None if self.config.autocasts else mixed_precision_policy(self.precision).reduce_dtype
        whole = super().reduce_dtype
        return whole if dtype is None or whole is None else str(dtype).removeprefix("torch.")

    def release(self, model: nn.Module) -> None:
        """Reshard the root unit: only backward would, and evaluation has none."""
        cast("FSDPModule", model).reshard()

    def shapes(self, model: nn.Module) -> ModelShapes:
        """Shapes of all parameters: those without gradients are gathered too."""
        return model_shapes(model, frozen=True)


CONFIG, STRATEGY = FSDPConfig, FSDP
