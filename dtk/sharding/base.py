"""The base class of strategies: the methods that the training loop calls, and what a strategy must declare. Torch is
imported where it is used, so that the traits in a strategy's file can be read without it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from diagnostics.contract.mesh import EXPERTS
from dtk.errors import DtkError
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from diagnostics.contract.mesh import Mesh
    from dtk.parallel.collectives import Axis
    from dtk.parallel.context import Context
    from dtk.parallel.tiers import Tier

    Fill = Callable[[nn.Module], None]
    """Fills every parameter of a materialised model with its initial value, one parameter at a time."""
    BuildOptimizer = Callable[[list[dict[str, Any]]], Optimizer]


class Strategy(ABC):
    """One way to distribute training over ranks."""

    clips_in_update = False
    """Whether the optimizer's step clips the gradients itself; `norm_of_update` then returns their norm."""

    def __init__(self, config: Any, context: Context, precision: PrecisionConfig) -> None:
        self.config = config
        self.notes: list[str] = []
        """Notes that rank 0 prints on how the configuration was interpreted."""
        self.context = context
        self.precision = precision
        self.partial_over_tp: list[str] = []
        """Names of parameters whose gradients are partial sums on the ranks of `tp` after backward."""
        mesh = context.mesh
        divided = config.mesh(mesh.dp_size)
        if (mesh.dp_replicate, mesh.dp_shard) != (divided.dp_replicate, divided.dp_shard):
            raise ValueError(f"the ranks joined as {mesh}, but strategy={config.name} divides them differently")
        for dimension in ("pp", "cp", "tp", "ep"):
            if mesh.size(dimension) > 1 and dimension not in config.traits.dimensions:
                what = f"strategy={config.name} does not implement the mesh dimension {dimension}"
                raise DtkError(what, f"it would train incorrectly with {dimension}={mesh.size(dimension)}")
        self.mesh: Mesh = config.states_mesh(mesh)
        """Mesh over which model states are distributed; ranks along cp count as data-parallel ranks in it."""

    def configure(self, job: Any) -> None:  # noqa: B027
        """Read the whole configuration before `wrap`; only other libraries' engines need more than the section."""

    @abstractmethod
    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Distribute a model that is on the meta device (or, for custom models, on the CPU).

        Return the module to call in forward. Its parameters are initialized on this rank's device; under sharding no
        rank ever holds the whole model.
        """

    @property
    def device_mesh(self) -> DeviceMesh:
        """All dimensions with process groups, outermost first; `device_mesh[name]` is the submesh of a dimension."""
        return self.context.device_mesh(self.mesh, self.config.grouped(self.mesh))

    @property
    def expert_mesh(self) -> DeviceMesh:
        """The mesh of the same ranks as they divide the experts of a model."""
        return self.context.device_mesh(self.mesh, ("pp", *EXPERTS) if self.mesh.pp > 1 else EXPERTS)

    @functools.cached_property
    def axes(self) -> dict[str, Axis]:
        """This rank's group along each dimension of `device_mesh`, along cp, and along those of `expert_mesh`."""
        import torch.distributed as dist

        from dtk.parallel.collectives import Axis

        groups = {name: self.device_mesh.get_group(name) for name in self.config.grouped(self.mesh)}
        if self.context.mesh.cp > 1:
            parts = self.context.mesh.groups("cp")
            groups["cp"] = dist.new_subgroups_by_enumeration(parts, group_desc="mesh_cp")[0]  # type: ignore[no-untyped-call]
        if self.mesh.ep > 1:
            groups.update((name, self.expert_mesh.get_group(name)) for name in EXPERTS)
        return {name: Axis(name, group, group.rank(), group.size()) for name, group in groups.items()}

    @functools.cached_property
    def tier(self) -> Tier | None:
        """Return the memory tier in which states are kept outside the update's device; None if they are on it."""
        if not self.config.pages(self.context.device.type):
            return None
        import torch

        from dtk.parallel.tiers import Tier

        device = torch.device("cpu") if self.config.offloads_parameters else self.context.device
        return Tier(device, self.config.offload_folder if self.config.offload_to == "nvme" else None)

    @property
    def loss_factor(self) -> int:
        """Factor of the loss: the number of ranks over which the library averages gradients."""
        return self.mesh.dp_size

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Build the optimizer over parameter groups; subclasses shard its state."""
        return build(groups)

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Return the context of one micro-batch: gradients are communicated in the last one only."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run backward of a micro-batch from its scaled loss, within `accumulate`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def begin_backward(self, wrapped: nn.Module, last: bool, split: bool = False) -> AbstractContextManager[object]:
        """Return the context of one backward in a pipeline, where forwards of other micro-batches run in between.

        All forwards ran under `accumulate(last=False)`. With `split` this is the half for the input or the weights;
        weight gradients then bypass the library's hooks, so they are reduced at the end of the `last` one.
        """
        return self.accumulate(wrapped, last)

    @property
    def stream_dtype(self) -> torch.dtype:
        """The dtype of the residual stream between blocks: under autocast that of the embedding's output."""
        import torch

        return torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass."""
        from dtk.parallel.precision import autocast

        return autocast(self.precision, self.context.device)

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Return the global L2 norm of the gradients, a float32 scalar, the same on every rank.

        The squares are summed by one all_reduce of 4 bytes over each dimension that divides the model. Replicas along
        such a dimension, such as a norm's weight under tensor parallelism, count on its first rank only.
        """
        import torch

        from dtk.parallel.collectives import all_reduce_
        from dtk.parallel.placement import replica

        axes = [self.axes[name] for name in self.config.summed(self.mesh)]
        grads = [local(p.grad) for p in parameters if p.grad is not None and replica(p)[0] == 0]
        norm = torch.nn.utils.get_total_norm(grads)
        if not axes:
            return norm
        squared = norm.float().square().to(self.context.device)
        for axis in axes:
            all_reduce_(squared, axis)
        return squared.sqrt()

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Multiply all gradients by a scalar in place, without synchronizing with the device."""
        import torch

        grads = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(grads, factor.to(grads[0].device))

    def norm_of_update(self) -> Tensor | None:
        """Return the norm of the last update's gradients before clipping if `clips_in_update`, else None."""
        return None

    def release(self, model: nn.Module) -> None:  # noqa: B027
        """Free parameters that a forward without backward left gathered; does nothing without sharding."""

    def stored(self, parameter: nn.Parameter) -> Tensor:
        """Return a parameter as a checkpoint stores it: this rank's shard or the whole. Every rank must call it."""
        return parameter.detach()

    @property
    def stored_alike(self) -> list[list[int]]:
        """Groups of ranks on which `stored` returns the same."""
        return self.replicas.get(self.copied_over or "", [])

    def outline(self, model: nn.Module) -> dict[str, Tensor]:
        """Return parameters and persistent buffers by name.

        Those that a library keeps in its own format are on the meta device: `stored` returns the value, `take` sets it.
        """
        # The extra state of a module may be anything.
        state = model.state_dict(keep_vars=True).items()
        return {name: value.detach() if hasattr(value, "detach") else value for name, value in state}

    def entries(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return what this rank stores in a checkpoint: `model.<name>` and `optimizer.<name>.<field>`."""
        owned = owned_state(optimizer)
        entries = {f"model.{name}": value for name, value in self.outline(model).items()}
        for name, parameter in model.named_parameters():
            fields = owned.get(parameter, {}).items()
            entries |= {f"optimizer.{name}.{field}": value for field, value in fields if hasattr(value, "shape")}
        return entries

    def take(self, parameter: nn.Parameter, value: Tensor, state: Mapping[str, Tensor]) -> None:
        """Set a parameter that `outline` has on the meta device, and its optimizer state, from whole tensors."""
        raise NotImplementedError

    def rank_state(self) -> dict[str, Tensor]:
        """Return state that only this rank has; a resume loads a checkpoint into these tensors."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Restore `rank_state` after a checkpoint was loaded into it."""

    def figures(self) -> dict[str, float]:
        """Return counters since the start for the metrics record, the same on every rank."""
        return {} if self.tier is None else self.tier.figures()

    @property
    def reduce_dtype(self) -> str | None:
        """The dtype of gradient reduction, by default that of the parameters; None on one rank."""
        return "float32" if self.mesh.dp_size > 1 else None

    @property
    def replicas(self) -> dict[str, list[list[int]]]:
        """Mesh dimension -> groups of ranks that hold bit-identical copies of everything not sharded over it."""
        mesh, over = self.mesh, self.copied_over
        also = ("tp", "ep") if mesh.ep_holds_copies else ("tp",)
        return {name: mesh.groups(name) for name in (over, *also) if name and (name == over or mesh.size(name) > 1)}

    @property
    def copied_over(self) -> str | None:
        """Mesh dimension whose ranks hold replicas of all parameters; None if no ranks do."""
        over: str | None = self.config.traits.replicated_over
        return over if over is None or self.mesh.ep == 1 else "expert_replicate"

    def collectives(self, model: nn.Module, accumulation_steps: int, clips: bool = False) -> list[Collective]:
        """Return the collectives of a step that the section declares for this model."""
        declared = self.config.declare(self.shapes(model), self.mesh, self.precision, accumulation_steps)
        return [*declared, *(self.config.declare_clip(self.mesh) if clips else ())]

    def partial_shapes(self, model: nn.Module) -> list[Shape]:
        """Return the local shapes of the gradients that are summed over `tp` after the last backward."""
        names = set(self.partial_over_tp)
        return [tuple(local(p).shape) for name, p in model.named_parameters() if name in names and p.requires_grad]

    def shapes(self, model: nn.Module) -> ModelShapes:
        """Return the shapes of the communicated parameters: those with gradients."""
        return model_shapes(model)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a (possibly sharded) tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return, operator]


def unit_group(module: Any) -> Any:
    """Return fully_shard's parameter group of a unit; None if it has no parameters."""
    return module._get_fsdp_state()._fsdp_param_group


def materialise(model: nn.Module, device: torch.device, fill: Fill) -> None:
    """Allocate a model on `device` and initialize it; a model that already has values is only moved."""
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device=device)
        fill(model)
    else:
        model.to(device)


def model_shapes(model: nn.Module, frozen: bool = False) -> ModelShapes:
    """Return the shapes of the parameters with gradients, or of all if `frozen`, as data-parallel ranks shard them."""
    from dtk.parallel.blocks import blocks_of
    from dtk.parallel.placement import cut_shape, over_ep

    def shapes(parameters: Iterable[nn.Parameter], experts: bool = False) -> list[Shape]:
        chosen = (p for p in parameters if (frozen or p.requires_grad) and over_ep(p) == experts)
        return [cut_shape(p, over=("dp_shard", "expert_shard")) for p in chosen]

    blocks = [list(block.parameters()) for block in blocks_of(model)]
    inside = {parameter for block in blocks for parameter in block}
    rest = [parameter for parameter in model.parameters() if parameter not in inside]
    experts = [of_block for block in blocks if (of_block := shapes(block, experts=True))]
    return ModelShapes(shapes(model.parameters()), [shapes(block) for block in blocks], shapes(rest), experts)


def owned_state(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return the optimizer state on this rank by parameter: all of it, or this rank's partition under ZeRO-1."""
    inner: Optimizer = getattr(optimizer, "optim", optimizer)
    return inner.state


def owned_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters that this rank updates, in the order of the optimizer."""
    groups = getattr(optimizer, "optim", optimizer).param_groups
    return [parameter for group in groups for parameter in group["params"]]
