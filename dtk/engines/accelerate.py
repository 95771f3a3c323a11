"""`engine=accelerate`: the library Accelerate wraps model and optimizer and runs backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dtk.errors import DtkError
from dtk.extras import load
from dtk.sharding.base import Strategy, materialise, unit_group
from dtk.sharding.declared import ModelShapes, Shape
from dtk.sharding.registry import NATIVE

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.fsdp import FSDPModule
    from torch.optim import Optimizer

    from dtk.sharding.base import BuildOptimizer, Fill
    from dtk.sharding.traits import Traits


class Accelerated(Strategy):
    """Common base: the `Accelerator` that `wrap` creates wraps the optimizer and runs backward."""

    accelerator: Any
    hooked: Any
    """Method of the native strategy of replicas."""

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Build the optimizer and let Accelerate wrap it."""
        return cast("Optimizer", self.accelerator.prepare_optimizer(build(groups)))

    def backward(self, loss: Tensor) -> None:
        """Run Accelerate's backward."""
        self.accelerator.backward(loss)


class Replicas(Accelerated):
    """DistributedDataParallel as `Accelerator.prepare_model` sets it up."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Let Accelerate wrap a full replica; DtkError if it did not wrap it in DistributedDataParallel."""
        load("accelerate")
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs
        from torch.nn.parallel import DistributedDataParallel

        materialise(model, self.context.device, fill)
        keys = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")
        options = DistributedDataParallelKwargs(**{key: getattr(self.config, key) for key in keys})
        precision = "bf16" if self.precision.compute_dtype == "bfloat16" else "no"
        on_cpu = self.context.device.type == "cpu"
        self.accelerator = Accelerator(cpu=on_cpu, mixed_precision=precision, kwargs_handlers=[options])
        wrapped = self.accelerator.prepare_model(model)
        if self.mesh.dp_size > 1 and not isinstance(wrapped, DistributedDataParallel):
            became = f"{type(wrapped).__name__} ({self.accelerator.distributed_type.value})"
            raise DtkError(f"engine=accelerate made {became} of the model, not replicas", fix=f"use engine={NATIVE}")
        return cast("nn.Module", self.hooked(model, wrapped, None))


class Shards(Accelerated):
    """FSDP2 through Accelerate's plugin, which wraps modules by class."""

    def shard(self, model: nn.Module, arguments: dict[str, Any]) -> list[FSDPModule]:
        """Let Accelerate create the units by the function that `Accelerator.prepare` calls except on the CPU."""
        load("accelerate")
        from accelerate import Accelerator
        from accelerate.utils import FullyShardedDataParallelPlugin, fsdp2_prepare_model
        from torch.distributed.fsdp import FSDPModule

        from dtk.parallel.blocks import blocks_of

        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=self.config.reshard_after_forward,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=sorted({type(block).__name__ for block in blocks_of(model)}),
            mixed_precision_policy=arguments["mp_policy"],
            cpu_offload=arguments["offload_policy"],
            cpu_ram_efficient_loading=False,
        )
        self.accelerator = Accelerator(cpu=self.context.device.type == "cpu", fsdp_plugin=plugin)
        self.accelerator.state.fsdp_plugin = plugin  # Accelerate omits this on the CPU.
        fsdp2_prepare_model(self.accelerator, model)
        root, *units = (module for module in model.modules() if isinstance(module, FSDPModule))
        self.units: list[FSDPModule] = [*units, root]
        return self.units

    def shapes(self, model: nn.Module) -> ModelShapes:
        """Return the units that Accelerate created, including embeddings and final norm if it finds them."""
        freed, kept = list[list[Shape]](), list[list[Shape]]()
        for group in filter(None, map(unit_group, self.units)):
            unit = [tuple(p.sharded_param.shape) for p in group.fsdp_params]
            # FSDP2 does not reshard the root either, but decides that in the first forward.
            keeps = group.modules[0] is model or not group._reshard_after_forward
            (kept if keeps else freed).append(unit)
        return ModelShapes(super().shapes(model).parameters, freed, [], apart=kept)


def run_by_library(native: type[Strategy], traits: Traits) -> type[Strategy]:
    """Return a strategy whose model, optimizer and backward are Accelerate's, and everything else the native one's."""
    return type(f"Accelerate{native.__name__}", (Shards if traits.shards_parameters else Replicas, native), {})
