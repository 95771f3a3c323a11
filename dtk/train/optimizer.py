"""Optimizers: which parameters decay, how they are built, and the variant that updates inside backward."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.errors import DtkError


@dataclass(frozen=True)
class Recipe:
    """An optimizer class with its arguments: called with parameter groups it builds one."""

    cls: type[Optimizer]
    arguments: dict[str, Any]

    def __call__(self, groups: Any, **more: Any) -> Optimizer:
        """Build the optimizer over parameter groups."""
        return self.cls(groups, **{**self.arguments, **more})


def recipe(config: AdamWConfig | SGDConfig, parameters: Iterable[nn.Parameter]) -> Recipe:
    """From the `optimizer` section; `parameters` decide whether the fused kernel is possible.

    Raises:
        DtkError: `fused=true` where torch has no fused kernel.
    """
    if isinstance(config, SGDConfig):
        return Recipe(SGD, {"lr": config.lr, "momentum": config.momentum, "nesterov": config.nesterov})
    fusable = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    if config.fused is True and not fusable:
        raise DtkError("optimizer.fused=true is not possible here", "torch fuses AdamW on CPU and CUDA only")
    fused = fusable if config.fused == "auto" else bool(config.fused)
    first, second = config.betas
    return Recipe(AdamW, {"lr": config.lr, "betas": (first, second), "eps": config.eps, "fused": fused})


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay, vectors (biases, norms) without."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class InBackward(Optimizer):
    """One small optimizer per parameter, run by autograd as soon as that gradient is complete.

    The gradient is freed at once, so no more than a few exist at a time. `step` is empty: the
    updates have happened. Rules out clipping and accumulation (checked before the run).
    """

    def __init__(self, groups: list[dict[str, Any]], build: Recipe) -> None:
        super().__init__(groups, {})
        self.parts: dict[Tensor, Optimizer] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                part = build([{"params": [parameter], "weight_decay": group["weight_decay"]}])
                self.parts[parameter] = part
                self.state[parameter] = part.state[parameter]
                parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: Tensor) -> None:
        part = self.parts[parameter]
        part.step()
        part.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing is left to do."""

    def set_lr(self, lr: float) -> None:
        """Must be set before backward."""
        for part in self.parts.values():
            part.param_groups[0]["lr"] = lr


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group."""
    if isinstance(optimizer, InBackward):
        optimizer.set_lr(lr)
        return
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor that scales gradients of global norm `norm` to a norm of at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
