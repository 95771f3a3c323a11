"""The base of all strategies: the verbs that the training loop calls, and what must be declared.

A strategy decides how the model is spread over ranks and what is communicated. It never sees
data, schedules or checkpoints, and never imports the training loop. Torch is imported where it is used, so that the
traits in a strategy's file can be read without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from dtk.errors import DtkError
from dtk.strategies.declared import Collective, ModelShapes, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dtk.config.schema import PrecisionConfig
    from dtk.parallel.context import Context

    Fill = Callable[[nn.Module], None]
    """Gives every parameter of a materialised model its initial value, one parameter at a time."""
    BuildOptimizer = Callable[[list[dict[str, Any]]], Optimizer]


class Strategy(ABC):
    """One way to spread training over ranks."""

    def __init__(self, config: Any, context: Context, precision: PrecisionConfig) -> None:
        self.config = config
        self.context = context
        self.precision = precision
        mesh, known = context.mesh, config.traits.dimensions
        if mesh != config.mesh(context.world_size):
            raise ValueError(f"the ranks joined as {mesh}, but strategy={config.name} divides them otherwise")
        for dimension in ("pp", "cp", "tp", "ep"):
            if mesh.size(dimension) > 1 and dimension not in known:
                raise DtkError(
                    f"strategy={config.name} does not implement the mesh dimension {dimension}",
                    f"it would train wrong numbers with {dimension}={mesh.size(dimension)}",
                )

    @abstractmethod
    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Spread a model that lives on the meta device (or, for custom models, on the CPU).

        Returns:
            the module to call in forward. Its parameters are on this rank's device and filled;
            under sharding no rank ever holds the whole model.
        """

    @property
    def loss_factor(self) -> int:
        """What the loss is multiplied by, because the library averages gradients over that many ranks."""
        return self.context.mesh.dp_size

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Build the optimizer over parameter groups; sharded state is the business of subclasses."""
        return build(groups)

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Context of one micro-batch: gradients are communicated in the last one only."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Context of the forward pass."""
        from dtk.parallel.precision import autocast

        return autocast(self.precision, self.context.device)

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Global L2 norm of the gradients, a float32 scalar, the same on every rank."""
        import torch

        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Multiply all gradients by a scalar on the device, without waiting for it."""
        import torch

        torch._foreach_mul_([local(p.grad) for p in parameters if p.grad is not None], factor)

    def release(self, model: nn.Module) -> None:  # noqa: B027
        """Free what a forward without backward left gathered; nothing where nothing is sharded."""

    @property
    def reduce_dtype(self) -> str | None:
        """Number format in which gradients travel: that of the parameters; None on one rank."""
        return "float32" if self.context.mesh.dp_size > 1 else None

    @property
    def replicas(self) -> list[list[int]]:
        """Groups of ranks that must hold the same parameters, bit for bit; none where everything is sharded."""
        dimension = self.config.traits.replicated_over
        return [] if dimension is None else self.context.mesh.groups(dimension)

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """Return the collectives of a step, as the section declares them for this model."""
        declared: list[Collective] = self.config.declare(
            model_shapes(model), self.context.mesh, self.precision, accumulation_steps
        )
        return declared


def local(tensor: Tensor) -> Tensor:
    """Return the part of a (possibly sharded) tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return, operator]


def materialise(model: nn.Module, device: torch.device, fill: Fill) -> None:
    """Give a model memory on `device` and initial values; a model with values is only moved."""
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device=device)
        fill(model)
    else:
        model.to(device)


def model_shapes(model: nn.Module, frozen: bool = False) -> ModelShapes:
    """Shapes of the parameters that have gradients, or with `frozen` of all."""

    def shapes(parameters: Iterable[nn.Parameter]) -> list[Shape]:
        return [tuple(p.shape) for p in parameters if frozen or p.requires_grad]

    blocks = [list(block.parameters()) for block in getattr(model, "blocks", ())]
    inside = {parameter for block in blocks for parameter in block}
    rest = [parameter for parameter in model.parameters() if parameter not in inside]
    return ModelShapes(shapes(model.parameters()), [shapes(block) for block in blocks], shapes(rest))


def owned_state(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return the optimizer state on this rank, keyed by parameter; the whole of it unless it is sharded (ZeRO-1)."""
    inner: Optimizer = getattr(optimizer, "optim", optimizer)
    return inner.state
