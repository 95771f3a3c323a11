"""`fsdp`: PyTorch's fully_shard (FSDP2), one unit per block and one for the rest; base of zero2, zero3 and hsdp."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from diagnostics.contract.formatting import counted
from diagnostics.contract.mesh import DATA, MODEL, SECONDARY, Mesh, divisors
from dtk.errors import DtkError
from dtk.parallel.compression import BLOCK
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.base import Strategy, local, materialise, model_shapes, unit_group
from dtk.sharding.declared import ITEM_BYTES, Collective, ModelShapes, reduced_item_bytes, shard_elements, wire_bytes
from dtk.sharding.traits import STATES, StrategyConfig, Traits

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.fsdp import FSDPModule

    from dtk.sharding.base import Fill


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPConfig(StrategyConfig):
    """`fully_shard` per block (PyTorch FSDP2): parameters, gradients and optimizer state sharded."""

    traits = Traits(
        sharded=STATES,
        gradients_in="units",
        collectives=("all_gather", "reduce_scatter"),
        dimensions=(*DATA, *MODEL),
        always_grouped=("dp_shard",),
        simplicity=6,
    )
    kept = "P/N", "P/N", "K/N"
    collectives = "2 A all_gathers (the root unit: A) and one reduce_scatter per unit"
    sent = "2 A P (N-1)/N + P (N-1)/N"
    use_when = "the model does not fit on one device"
    autocasts = False
    """Whether the forward runs under autocast on float32 parameters instead of casting whole units."""
    gathers_once = False
    """Whether gathered parameters stay until the last backward of a step."""
    limits = {"blocks_per_unit": (0, math.inf), "prefetch_depth": (0, math.inf), "reshard_after_forward": (2, math.inf)}

    name: Literal["fsdp"] = "fsdp"
    reshard_after_forward: bool | int = True
    blocks_per_unit: int = 1
    prefetch_depth: int = 1
    quantized_weights: bool = False
    quantized_gradients: bool = False

    def mesh(self, dp_size: int) -> Mesh:
        """Return a mesh sharded over all ranks, in subgroups if backward gathers inside them."""
        secondary = 1 if isinstance(self.reshard_after_forward, bool) else self.reshard_after_forward
        return replace(StrategyConfig.mesh(self, dp_size), dp_secondary=secondary)

    def on(self, mesh: Mesh) -> StrategyConfig:
        """Return itself; DtkError for other dimensions, or a `reshard_after_forward` that does not divide the ranks."""
        size, alone = mesh.dp_secondary, mesh.dp_shard == mesh.world_size and mesh.ep == 1
        fits = divisors(mesh.dp_shard)[1:-1] if alone else []
        if size == 1 or size in fits:
            return self
        key = "strategy.reshard_after_forward"
        ranks = counted(mesh.dp_shard, "rank") if alone else f"{mesh}" if mesh.ep == 1 else f"parallel.ep={mesh.ep}"
        why = "it must divide dp_shard into at least two groups of two or more ranks, with no other mesh dimension"
        raise DtkError(f"{key}={size} is incompatible with {ranks}", why, f"use {key}={fits[0] if fits else 'true'}")

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Declare gathers per micro-batch (two for units that reshard) or per step, and one reduce_scatter per unit.

        FSDP2 does not reshard the root unit (embeddings, final norm, head) after forward, as backward would immediately
        gather it again. A rank that holds whole parameters gathers and scatters nothing.
        """
        units, root = shapes.units(self.blocks_per_unit), shapes.root(self.blocks_per_unit)
        compute, reduced = ITEM_BYTES[precision.compute_dtype], reduced_item_bytes(precision)
        reduction, near = "all_to_all" if self.quantized_gradients else "reduce_scatter", mesh.dp_secondary > 1
        rounds, declared = 1 if self.gathers_once else accumulation_steps, list[Collective]()
        for shard, replicate, freed, kept, times in (
            # A stage in the middle of a pipeline has no root.
            ("dp_shard", "dp_replicate", units, [*shapes.apart, *([root] if root else [])], rounds),
            # Experts sharded over `ep` are separate units, over the ranks with the same experts.
            ("expert_shard", "expert_replicate", shapes.experts, [], rounds),
        ):
            shards, every, again = mesh.size(shard), [*freed, *kept], freed if self.reshard_after_forward else []
            calls = [("all_gather", shard, [*every, *(() if near else again)], compute, self.quantized_weights, times)]
            calls += [("all_gather", SECONDARY, [*again], compute, False, times)] if near else []
            calls += [(reduction, shard, [*every], reduced, self.quantized_gradients, 1)]
            for op, group, some, item_bytes, int8, repeated in calls if shards > 1 and every else ():
                size = sum(wire_bytes(unit, shards, item_bytes, int8) for unit in some)
                declared.append(Collective(op, group, repeated * len(some), repeated * size))
            if replicate in self.grouped(mesh) or (every and mesh.size(replicate) > 1):
                elements = sum(shard_elements(unit, shards) for unit in every)
                declared.append(Collective("all_reduce", replicate, len(every), elements * reduced))
        return declared


class FSDP(Strategy):
    """Fully sharded data parallel (Zhao et al. 2023) over the mesh dimension `dp_shard`.

    The average over `dp_replicate` runs in FSDP2's all-reduce hook, on the reduced shards.
    `reshard_after_forward=false` keeps gathered parameters until backward: one all_gather per unit instead of two, at
    the cost of holding whole parameters in between (ZeRO-2-like).
    """

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Shard on the meta device first, then allocate and initialize this rank's shards only."""
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

        from dtk.parallel.placement import mark_copy, over_ep
        from dtk.parallel.precision import mixed_precision_policy

        on_cuda = self.context.device.type == "cuda"
        arguments: dict[str, Any] = {
            "mesh": self.device_mesh["dp_shard"],
            "mp_policy": MixedPrecisionPolicy() if self.config.autocasts else mixed_precision_policy(self.precision),
            "offload_policy": OffloadPolicy(),
        }
        storage = self.context.device
        if self.config.offloads_parameters:
            storage = torch.device("cpu")
            arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=on_cuda and self.tier is None)
        if not any(p.is_meta for p in model.parameters()):
            model.to(storage)
        experts = self._shard_experts(model, arguments)
        modules = self.shard(model, arguments)
        materialise(model, storage, fill)
        if "dp_replicate" in self.axes:
            for module in modules:
                module.set_all_reduce_hook(partial(self._average, "dp_replicate", self.mesh.dp_replicate))
        self._replace_collectives(modules, "dp_shard")
        self._replace_collectives(experts, "expert_shard")
        if self.tier is not None and self.config.offloads_parameters:
            self._page_parameters([*modules[:-1], *experts, modules[-1]])
        if self.mesh.ep_holds_copies:
            for parameter in model.parameters():
                if not over_ep(parameter):
                    mark_copy(parameter, self.axes["ep"].rank, self.axes["ep"].size)
        return model

    def shard(self, model: nn.Module, arguments: dict[str, Any]) -> list[FSDPModule]:
        """Make each group of blocks a unit and the rest another; return the units in forward order, the root last."""
        from torch.distributed.fsdp import fully_shard

        from dtk.parallel.blocks import blocks_of

        size, depth, blocks = self.config.blocks_per_unit, self.config.prefetch_depth, blocks_of(model)
        units = [blocks[i : i + size] for i in range(0, len(blocks), size)] if size else []
        for unit in units:
            fully_shard(unit, reshard_after_forward=self.config.reshard_after_forward, **arguments)
        # By default FSDP2 keeps the root unit gathered from forward to backward, which needs it first.
        fully_shard(model, **arguments)
        heads = [cast("FSDPModule", unit[0]) for unit in units]
        if depth != 1:  # A depth of one is the library's default.
            for i, head in enumerate(heads):
                head.set_modules_to_forward_prefetch(heads[i + 1 : i + 1 + depth])
                head.set_modules_to_backward_prefetch(heads[max(0, i - depth) : i][::-1])
        return [*heads, cast("FSDPModule", model)]

    def _shard_experts(self, model: nn.Module, arguments: dict[str, Any]) -> list[FSDPModule]:
        """Make units of the experts that are sharded over `ep`, over the ranks with the same experts."""
        from torch.distributed.fsdp import fully_shard

        from dtk.parallel.placement import over_ep

        experts = []
        for module in model.modules():
            if any(over_ep(parameter) for parameter in module.parameters(recurse=False)):
                over = {**arguments, "mesh": self.expert_mesh["expert_shard"]}
                unit = fully_shard(module, reshard_after_forward=self.config.reshard_after_forward, **over)
                # Each gradient is the sum over the tokens of an `ep` group; the average is over all tokens.
                divisor = self.loss_factor / self.mesh.expert_shard
                unit.set_all_reduce_hook(partial(self._average, "expert_replicate", divisor))
                experts.append(unit)
        return experts

    def _average(self, dimension: str, divisor: float, gradient: Tensor) -> None:
        """Sum a gradient over the ranks of a dimension and divide it; a hook of FSDP2."""
        from dtk.parallel.collectives import all_reduce_

        if dimension == "dp_replicate" or self.mesh.expert_replicate > 1:
            all_reduce_(gradient, self.axes[dimension])
        gradient.div_(divisor)

    def _replace_collectives(self, modules: Iterable[FSDPModule], dimension: str) -> None:
        """Replace FSDP2's collectives over a mesh dimension by marked or quantized ones if either is needed."""
        from dtk.parallel import marked_comm
        from dtk.parallel.regions import observed

        config, secondary = self.config, self.mesh.dp_secondary if self.mesh.dp_secondary > 1 else 0
        for module in modules:
            sizes = [p._sharded_param_data.numel() for p in _parameters(module)]
            if config.quantized_weights:
                module.set_custom_all_gather(marked_comm.QuantizedAllGather(dimension, sizes, secondary))
            elif observed() or self.tier is not None:
                module.set_custom_all_gather(marked_comm.MarkedAllGather(dimension, secondary))
            if config.quantized_gradients:
                module.set_custom_reduce_scatter(marked_comm.QuantizedReduceScatter(dimension, sizes))
            elif observed():
                module.set_custom_reduce_scatter(marked_comm.MarkedReduceScatter(dimension))

    def _page_parameters(self, modules: list[FSDPModule]) -> None:
        """Keep the shards in a file: drop a unit's pages once it is gathered, and prefetch those of the next."""
        tier, units = self.tier, [_parameters(module) for module in modules]
        assert tier is not None
        tier.move_parameters(units)
        last = 0

        def copied(number: int) -> None:
            nonlocal last
            following, last = number + (1 if number >= last else -1), number  # Backward gathers in reverse order.
            tier.gathered(units[number], units[following] if 0 <= following < len(units) else [])

        def unshard(group: Any, gather: Callable[..., None], async_op: bool = False) -> None:
            if group.is_sharded and group._all_gather_result is None:
                tier.about_to_gather(group.fsdp_params)
            gather(async_op)

        for number, module in enumerate(modules):
            if units[number]:
                group = unit_group(module)
                group._all_gather_comm.copied = partial(copied, number)
                group.unshard = partial(unshard, group, group.unshard)

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Reduce gradients in the last micro-batch only; until then they are accumulated unsharded."""
        module = cast("FSDPModule", wrapped)
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        if self.config.gathers_once:
            module.set_reshard_after_backward(last)
        return self._completing(wrapped) if last and self.partial_over_tp else nullcontext()

    def begin_backward(self, wrapped: nn.Module, last: bool, split: bool = False) -> AbstractContextManager[object]:
        """As `accumulate`; a split backward needs parameters that stay gathered from the first half to the last."""
        return self._half(wrapped, last) if split else self.accumulate(wrapped, last)

    @contextmanager
    def _half(self, model: nn.Module, last: bool) -> Iterator[None]:
        module = cast("FSDPModule", model)
        module.set_reshard_after_backward(False)
        with self.accumulate(model, last=False):
            yield
        if last:  # torch's own pipeline stages do this after all backwards.
            with self.accumulate(model, last=True):
                module.set_reshard_after_backward(True)
                root = cast(Any, module)._get_fsdp_state()
                groups = (each for state in root._state_ctx.all_states for each in state._fsdp_param_groups[::-1])
                for group in groups:
                    group.post_backward()
                root._root_post_backward_final_callback()

    @contextmanager
    def _completing(self, model: nn.Module) -> Iterator[None]:
        """Sum partial gradients over the ranks of `tp` after the last backward, in one all_reduce."""
        import torch

        from dtk.parallel.collectives import all_reduce_

        yield
        names = set(self.partial_over_tp)  # Of all this rank's stages.
        grads = [local(p.grad) for name, p in model.named_parameters() if name in names and p.grad is not None]
        if grads:
            flat = all_reduce_(torch.cat([grad.reshape(-1) for grad in grads]), self.axes["tp"])
            parts = torch.split(flat, [grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])

    @property
    def stream_dtype(self) -> torch.dtype:
        """The dtype of the mixed-precision policy, which casts whole units."""
        from dtk.parallel.precision import DTYPES

        return super().stream_dtype if self.config.autocasts else DTYPES[self.precision.compute_dtype]

    def autocast(self) -> AbstractContextManager[object]:
        """Return a null context if the mixed-precision policy casts."""
        return super().autocast() if self.config.autocasts else nullcontext()

    @property
    def reduce_dtype(self) -> str | None:
        """The reduce dtype of the mixed-precision policy."""
        from dtk.parallel.precision import mixed_precision_policy

        dtype = None if self.config.autocasts else mixed_precision_policy(self.precision).reduce_dtype
        whole = super().reduce_dtype
        if whole is not None and self.config.quantized_gradients:
            return f"int8 by blocks of {BLOCK}"
        return whole if dtype is None or whole is None else str(dtype).removeprefix("torch.")

    def release(self, model: nn.Module) -> None:
        """Reshard the root unit: only backward does it otherwise, and evaluation has none."""
        cast("FSDPModule", model).reshard()

    def shapes(self, model: nn.Module) -> ModelShapes:
        """Return the shapes of all parameters, as those without gradients are gathered too."""
        return model_shapes(model, frozen=True)


def _parameters(module: FSDPModule) -> list[Any]:
    """Return fully_shard's parameter objects of a unit, in the order in which it gathers them."""
    return [] if (group := unit_group(module)) is None else list(group.fsdp_params)


CONFIG, STRATEGY = FSDPConfig, FSDP
