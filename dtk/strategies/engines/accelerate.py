"""`engine=accelerate`: the replicas of `strategy=ddp` as the library Accelerate wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dtk.errors import DtkError
from dtk.strategies.base import materialise
from dtk.strategies.ddp import DDP

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dtk.strategies.base import BuildOptimizer, Fill


class AccelerateDDP(DDP):
    """DistributedDataParallel that `Accelerator.prepare_model` made."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise a full replica and let Accelerate wrap it.

        Raises:
            DtkError: it became something else than replicas.
        """
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
            raise DtkError(f"engine=accelerate made {became} of the model, not replicas", fix="use engine=native")
        return self.hooked(model, wrapped, None)

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Let Accelerate wrap the optimizer too."""
        return cast("Optimizer", self.accelerator.prepare_optimizer(build(groups)))

    def backward(self, loss: Tensor) -> None:
        """Run Accelerate's backward."""
        self.accelerator.backward(loss)


STRATEGY = AccelerateDDP
