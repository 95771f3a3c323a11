"""Optimizers: parameter groups, construction, and the variant that updates during backward."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import SGD, AdamW, Optimizer

from dtk.config.instantiate import find_class
from dtk.config.schema import AdamWConfig, Config, CustomOptimizerConfig, SGDConfig
from dtk.errors import Errors
from dtk.sharding.registry import alternatives

_errors = Errors(__file__)
ELEMENTWISE = frozenset({
    optim.ASGD, SGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.Adamax, AdamW, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop,
})  # fmt: skip
"""torch optimizers that update each element independently; Adafactor and Muon use whole matrices."""


Recipe = Callable[..., Optimizer]
"""An optimizer class with its arguments; calling it with parameter groups builds the optimizer."""


def recipe(
    config: AdamWConfig | SGDConfig | CustomOptimizerConfig,
    parameters: Iterable[nn.Parameter],
    allow_targets: list[str],
) -> Recipe:
    """Return the recipe of the `optimizer` section; the fused kernel is used if all `parameters` support it.

    DtkError for `fused=true` where torch has no fused kernel; a `_target_` that cannot be used.
    """
    if isinstance(config, CustomOptimizerConfig):
        return partial(named_optimizer(config, allow_targets), **{"lr": config.lr, **config.arguments})
    if isinstance(config, SGDConfig):
        return partial(SGD, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
    fusable = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    _errors.refuse({"fused": config.fused is True and not fusable})
    fused = fusable if config.fused == "auto" else bool(config.fused)
    first, second = config.betas
    return partial(AdamW, lr=config.lr, betas=(first, second), eps=config.eps, fused=fused)


def named_optimizer(config: CustomOptimizerConfig, allow_targets: list[str]) -> type[Optimizer]:
    """Import the class of `optimizer._target_`; DtkError if it is not allowed, not found or not an Optimizer, does not
    accept these arguments, or needs a closure.
    """
    arguments = {"params": [], "lr": config.lr, **config.arguments}
    cls: type[Optimizer] = find_class(config._target_, arguments, allow_targets, Optimizer)
    _errors.refuse({"unusable": issubclass(cls, optim.LBFGS | optim.SparseAdam)}, target=config._target_)
    return cls


def check_optimizer(config: Config, world_size: int) -> None:
    """Reject an optimizer whose update of a shard differs from that of the whole parameter; DtkError if the update
    differs, or the class cannot be used.
    """
    section, mesh = config.optimizer, config.mesh(world_size)
    if not isinstance(section, CustomOptimizerConfig):
        return
    cls = named_optimizer(section, config.allow_targets)
    cut = config.strategy.traits.shards_parameters and mesh.dp_shard > 1
    if section.elementwise or cls in ELEMENTWISE or not (cut or mesh.tp > 1):
        return
    whole = alternatives(lambda traits: not (traits.one_process or traits.shards_parameters))
    cutting = f"strategy={config.strategy.name}" if cut else f"parallel.tp={mesh.tp}"
    raise _errors("sharded", target=section._target_, cutting=cutting, whole=whole)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: matrices with weight decay, vectors (biases, norms) without."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    groups = (matrices, weight_decay), (vectors, 0.0)
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


class InBackward(Optimizer):
    """One optimizer per parameter, which autograd runs as soon as the gradient is accumulated.

    The gradient is freed immediately, so only a few exist at a time. `step` does nothing, as the updates have already
    happened. Incompatible with clipping and accumulation (checked before the run).
    """

    def __init__(self, groups: list[dict[str, Any]], build: Recipe) -> None:
        super().__init__(groups, {})
        self.parts: dict[Tensor, Optimizer] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                part = self.parts[parameter] = build([{"params": [parameter], "weight_decay": group["weight_decay"]}])
                self.state[parameter] = part.state[parameter]
                parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: Tensor) -> None:
        part = self.parts[parameter]
        part.step()
        part.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: the updates happened during backward."""


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group; call it before backward."""
    for part in optimizer.parts.values() if isinstance(optimizer, InBackward) else [optimizer]:
        for group in part.param_groups:
            group["lr"] = lr


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor that scales gradients of global norm `norm` to a norm of at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
