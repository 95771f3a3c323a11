"""`fsdp`, `zero3`, `zero2` and `hsdp`: PyTorch's fully_shard (FSDP2), one unit per block and one for the rest."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from dtk.parallel.context import data_parallel_mesh
from dtk.parallel.precision import mixed_precision_policy
from dtk.parallel.regions import communication, observed
from dtk.strategies.base import Fill, Strategy, local, materialise
from dtk.strategies.declared import CLIP_SHARDED, Collective, Shape, fsdp_collectives, hsdp_collectives, shard_mesh
from dtk.strategies.marked_comm import MarkedAllGather, MarkedReduceScatter


class FSDP(Strategy):
    """Fully sharded data parallel (Zhao et al. 2023) over one mesh dimension, `dp_shard`.

    `reshard_after_forward=false` keeps gathered parameters until backward: one all_gather per unit
    instead of two, at the price of whole parameters in memory in between (ZeRO-2-like).
    """

    clip_collectives = CLIP_SHARDED

    def mesh(self) -> DeviceMesh:
        """The mesh over which parameters are sharded, one dimension named dp_shard."""
        return data_parallel_mesh(self.context, {"dp_shard": self.context.world_size})

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Shard on the meta device first, then give memory and values to this rank's shards only."""
        mesh = self.mesh()
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
        heads = [cast(FSDPModule, unit[0]) for unit in units]
        self._prefetch(heads)
        if observed():
            self._mark([*heads, cast(FSDPModule, model)])
        return model

    def _units(self, model: nn.Module) -> list[list[nn.Module]]:
        """Consecutive blocks that are gathered together; none when the whole model is one unit."""
        size = self.config.blocks_per_unit
        blocks = list(cast(Iterable[nn.Module], getattr(model, "blocks", ())))
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
        for module in modules:
            module.set_custom_all_gather(MarkedAllGather())
            module.set_custom_reduce_scatter(MarkedReduceScatter())

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Reduce gradients in the last micro-batch only; unsharded gradients wait until then."""
        module = cast(FSDPModule, wrapped)
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        return nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Nothing: the mixed-precision policy casts."""
        return nullcontext()

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Square, sum over the shards, root: one all_reduce of 4 bytes."""
        grads = [local(p.grad) for p in parameters if p.grad is not None]
        squared = torch.nn.utils.get_total_norm(grads).float().square().to(self.context.device)
        with communication("all_reduce", squared.nbytes, "dp_shard"):
            dist.all_reduce(squared, group=self.shard_group)
        return squared.sqrt()

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Scale this rank's shards where they lie."""
        grads = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(grads, factor.to(grads[0].device))

    @property
    def reduce_dtype(self) -> str | None:
        """That of the mixed-precision policy."""
        dtype = mixed_precision_policy(self.precision).reduce_dtype
        whole = super().reduce_dtype
        return whole if dtype is None or whole is None else str(dtype).removeprefix("torch.")

    def release(self, model: nn.Module) -> None:
        """Reshard the root unit: only backward would, and evaluation has none."""
        cast(FSDPModule, model).reshard()

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """Gathers in every micro-batch, one reduce_scatter per unit and step: see `fsdp_collectives`."""
        return fsdp_collectives(
            self.config, self.precision, *self._unit_shapes(model), self.shard_group.size(), accumulation_steps
        )

    def _unit_shapes(self, model: nn.Module) -> tuple[list[list[Shape]], list[Shape]]:
        """Shapes of the parameters of each unit of blocks, and of the root unit."""
        units = [[p for block in unit for p in block.parameters()] for unit in self._units(model)]
        in_units = {p for unit in units for p in unit}
        return (
            [[tuple(p.shape) for p in unit] for unit in units],
            [tuple(p.shape) for p in model.parameters() if p not in in_units],
        )


class HSDP(FSDP):
    """Hybrid sharding on a mesh dp_replicate x dp_shard: gathers stay inside dp_shard.

    The reduction over dp_replicate runs in FSDP2's all-reduce hook, on the reduced shards.
    """

    def mesh(self) -> DeviceMesh:
        """The dp_shard part of the 2-D mesh; the dp_replicate group is kept for the hook."""
        replicate, shard = shard_mesh(self.config, self.context.world_size)
        mesh = data_parallel_mesh(self.context, {"dp_replicate": replicate, "dp_shard": shard})
        self.replicate_group = mesh.get_group("dp_replicate")
        return mesh["dp_shard"]

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """As fsdp, with the gradients averaged over the replicas as well."""
        wrapped = super().wrap(model, fill)
        for module in [unit[0] for unit in self._units(model)] + [model]:
            cast(FSDPModule, module).set_all_reduce_hook(self._average_over_replicas)
        return wrapped

    @property
    def replicas(self) -> list[list[int]]:
        """The ranks of each dp_replicate group: same shard, another replica."""
        shards = self.shard_group.size()
        return [list(range(shard, self.context.world_size, shards)) for shard in range(shards)]

    def _average_over_replicas(self, gradient: Tensor) -> None:
        with communication("all_reduce", gradient.nbytes, "dp_replicate"):
            dist.all_reduce(gradient, group=self.replicate_group)
        gradient.div_(self.replicate_group.size())

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """As fsdp over dp_shard, and one all_reduce of the shard per unit over dp_replicate."""
        return hsdp_collectives(
            self.config, self.precision, *self._unit_shapes(model), self.shard_group.size(), accumulation_steps
        )
