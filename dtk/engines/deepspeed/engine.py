"""Training with DeepSpeed on one rank: the library runs forward, backward, clipping and update.

The library uses dtk's process group. States are read and written through `deepspeed.utils.safe_get_full_*`, so that a
checkpoint has dtk's format and any other strategy can read it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from dtk.errors import DtkError
from dtk.extras import load
from dtk.parallel.regions import communication, region
from dtk.sharding.base import Strategy, materialise, model_shapes

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dtk.sharding.base import BuildOptimizer, Fill
    from dtk.sharding.declared import ModelShapes

MARKED = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_reduce", "all_reduce_coalesced",
    "all_to_all_single", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip
"""Operations of DeepSpeed's communication backend that get a communication region."""


class EngineOptimizer:
    """The optimizer that the loop steps: the engine clips, updates and frees gradients in one step."""

    def __init__(self, engine: Any) -> None:
        self.step, self.optim = engine.step, engine.optimizer.optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the wrapped torch optimizer, in which the learning rate is set."""
        return self.optim.param_groups  # type: ignore[no-any-return]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the step has freed the gradients."""


class DeepSpeed(Strategy):
    """ZeRO (Rajbhandari et al. 2020) as its authors' library implements it."""

    clips_in_update = True

    def configure(self, job: Any) -> None:
        """Build DeepSpeed's configuration from that of the job."""
        self.settings, self.notes = self.config.settings(job, self.context.world_size)

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise the whole model, as callers of `deepspeed.initialize` do; that call partitions it."""
        from torch import nn

        materialise(model, self.context.device, fill)
        self.model, self.whole_shapes = model, model_shapes(model, frozen=self.config.traits.shards_parameters)
        self.sizes = {parameter: parameter.shape for parameter in model.parameters()}
        entrance = nn.Module()
        entrance.forward = lambda *inputs, **more: self.engine(*inputs, **more)
        return entrance

    def build_optimizer(self, groups: list[dict[str, Any]], build: BuildOptimizer) -> Optimizer:
        """Initialize DeepSpeed with model and optimizer; DtkError if the library rejects them."""
        deepspeed = _library(self.context.device.type)
        # Checked first: the library would compile another extension for minutes before it rejects the job.
        if self.config.offload_to == "nvme" and not deepspeed.ops.op_builder.AsyncIOBuilder().is_compatible(False):
            what = f"strategy={self.config.name}: DeepSpeed cannot build what strategy.offload_to=nvme needs"
            fix = f"install them (Debian: libaio-dev g++), or use {self.config.by_torch}"
            raise DtkError(what, "a C++ compiler and the headers of libaio", fix)
        # Give DeepSpeed a bucket that the gradients can fill: it allocates as many elements as it is told.
        key, states = "reduce_bucket_size", self.settings["zero_optimization"]
        fits = self.config.bucket_elements(sum(size.numel() for size in self.sizes.values()))
        if states.get(key, fits) != fits:
            self.notes.append(f"zero_optimization.{key}={states[key]} becomes {fits}, the parameters of the model")
        states[key] = fits
        job = {"model": self.model, "optimizer": build(groups), "config": self.settings}
        # In 16 bit DeepSpeed creates the master weights from already rounded parameters.
        rounds = self.precision.compute_dtype != "float32"
        exact = {p: p.detach().to("cpu", copy=True) for group in groups for p in group["params"]} if rounds else {}
        try:
            self.engine = deepspeed.initialize(**job, dist_init_required=False)[0]
        except (AssertionError, ValueError, RuntimeError) as error:
            what = f"strategy={self.config.name}: DeepSpeed {deepspeed.__version__} refuses the job"
            raise DtkError(what, _why(error)) from error
        backend = deepspeed.comm.comm.cdb
        for op in MARKED:
            setattr(backend, op, _marked(op, getattr(type(backend), op).__get__(backend)))
        if inner := getattr(self.engine.optimizer, "setup_buckets", None):  # Stages 1 and 2: in each backward.

            def setup_buckets() -> None:
                with region("buckets"):  # The region says what the library allocates.
                    inner()

            self.engine.optimizer.setup_buckets = setup_buckets
        self.utils = deepspeed.utils
        for parameter, value in exact.items():
            self.utils.safe_set_full_fp32_param(parameter, value)
        return cast("Optimizer", EngineOptimizer(self.engine))

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Set DeepSpeed's gradient accumulation boundary; stages 2 and 3 reduce after every micro-batch."""
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run DeepSpeed's backward; the loop's factor already includes the number of micro-batches."""
        self.engine.backward(loss, scale_wrt_gas=False)

    def autocast(self) -> AbstractContextManager[object]:
        """Return a null context: DeepSpeed holds the parameters in the compute dtype."""
        return nullcontext()

    def norm_of_update(self) -> Tensor | None:
        """Return the gradient norm before clipping of the last update, as DeepSpeed's optimizer computed it."""
        import torch

        norm = self.engine.get_global_grad_norm()
        return None if norm is None else torch.as_tensor(norm, dtype=torch.float32)

    def stored(self, parameter: nn.Parameter) -> Tensor:
        """Return a whole parameter in float32; every rank must call it."""
        value = self.utils.safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        return parameter.detach() if value is None else value.detach()

    @property
    def stored_alike(self) -> list[list[int]]:
        """All ranks: `stored` returns whole parameters under every stage."""
        return self.mesh.groups("dp")

    def shapes(self, model: nn.Module) -> ModelShapes:
        """Return the shapes of the parameters before stage 3 partitioned them."""
        return self.whole_shapes

    def outline(self, model: nn.Module) -> dict[str, Tensor]:
        """Return float32 meta tensors for the parameters, and the buffers themselves."""
        import torch

        state = model.state_dict(keep_vars=True)
        return {
            name: torch.empty(self.sizes[value], device="meta") if value in self.sizes else value.detach()
            for name, value in state.items()
        }

    def entries(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Gather one parameter after the other; this rank stores every world_size-th one."""
        stored: dict[str, Tensor] = {}
        self._link()
        flat = self._flat[0]
        state: Mapping[str, Tensor] = self.engine.optimizer.optimizer.state.get(flat, {})
        for turn, (name, value) in enumerate(model.state_dict(keep_vars=True).items()):
            of_parameter = {f"model.{name}": self.stored(value) if value in self.sizes else value.detach()}
            if value.requires_grad:
                for field, whole in state.items():
                    if whole.shape == flat.shape:
                        whole = self.utils.safe_get_full_optimizer_state(value, field)
                    of_parameter[f"optimizer.{name}.{field}"] = whole
            if turn % self.context.world_size == self.context.rank:
                stored.update((key, each.to("cpu", copy=True)) for key, each in of_parameter.items())
        return stored

    def take(self, parameter: nn.Parameter, value: Tensor, state: Mapping[str, Tensor]) -> None:
        """Copy this rank's parts of a whole parameter and its optimizer state into the library's tensors."""
        import deepspeed
        import torch

        if parameter.requires_grad:
            self.utils.safe_set_full_fp32_param(parameter, value)
            for field, whole in state.items():
                if whole.shape == value.shape:
                    self._link(field)
                    self.utils.safe_set_full_optimizer_state(parameter, whole, field)
                else:
                    for flat in self._flat:
                        self.engine.optimizer.optimizer.state[flat][field] = whole.clone()
        with torch.no_grad(), deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(value)

    def _link(self, field: str = "") -> None:
        """Make the library map its optimizer states to parameters; allocate a field that does not exist yet."""
        import torch

        optimizer = self.engine.optimizer
        for i, flat in enumerate(self._flat if field else ()):
            if field not in (state := optimizer.optimizer.state[flat]):
                in_file = self.config.stage == 3 and optimizer._swappable_optimizer_subgroup(i)
                if in_file:  # There the float32 parameters are as well, and beside them the field's place is made.
                    optimizer._optimizer_states_and_gradient_swap_in(i)
                state[field] = torch.zeros_like(flat)
                if in_file:
                    optimizer._optimizer_states_and_gradient_swap_out(i)
        if self.config.stage < 3:
            # DeepSpeed 0.19 does so after updating the first of several groups, and misses the states of the others.
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    @property
    def _flat(self) -> list[Tensor]:
        """Return this rank's flat float32 parts of the parameters, which the library's optimizer updates."""
        name = "fp32_partitioned_groups_flat" if self.config.stage == 3 else "single_partition_of_fp32_groups"
        return cast("list[Tensor]", getattr(self.engine.optimizer, name))


def _why(error: Exception) -> str:
    """Return one line: of a failed validation (pydantic's) its keys and values, without the links to its pages."""
    if (wrong := getattr(error, "errors", None)) is None:
        return " ".join(str(error).split())
    return "; ".join(f"{'.'.join(map(str, each['loc']))}={each['input']!r}: {each['msg'].lower()}" for each in wrong())


def _marked(op: str, call: Callable[..., Any]) -> Callable[..., Any]:

    @functools.wraps(call)
    def marked(*inputs: Any, **more: Any) -> Any:
        buffers = [value if isinstance(value, list) else [value] for value in (*inputs, *more.values())]
        size = max(sum(getattr(each, "nbytes", 0) for each in buffer) for buffer in buffers)
        with communication(op.removesuffix("_into_tensor").removesuffix("_tensor"), size, "dp"):
            return call(*inputs, **more)

    return marked


def _library(device: str) -> Any:
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed = load("deepspeed")
    if device == "cpu":
        # Its shared-memory collectives would be compiled at the first start, which takes half a minute or fails without
        # a compiler; they bypass torch.distributed, and thus what records it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
