"""Keys of `optimizer` and `schedule` (`precision`: see `dtk.parallel.number_formats`)."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019). Weight decay applies to matrices only, not to biases and norms."""

    name: Literal["adamw"] = "adamw"
    lr: float = 6e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    eps: float = 1e-8
    weight_decay: float = 0.1
    fused: bool | Literal["auto"] = "auto"
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SGDConfig:
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomOptimizerConfig:
    """An optimizer by its import path: torch's or a custom one. The schedule sets its learning rate."""

    name: Literal["custom"] = "custom"
    _target_: str
    lr: float = 1e-3
    weight_decay: float = 0.0
    arguments: dict[str, Any] = field(default_factory=dict)
    elementwise: bool = False
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """Constant learning rate, after an optional warm-up."""

    name: Literal["constant"] = "constant"
    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Linear warm-up, then cosine decay to `min_lr_ratio` times the learning rate at the last step."""

    name: Literal["cosine"] = "cosine"
    warmup_steps: int = 5
    min_lr_ratio: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class WSDSchedule:
    """Warm-up, stable, decay (Hu et al. 2024): linear decay over the last `decay_steps`."""

    name: Literal["wsd"] = "wsd"
    warmup_steps: int = 5
    decay_steps: int = 10
    min_lr_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomSchedule:
    """A schedule of your own by its import path: a subclass of `dtk.train.schedule.Schedule`."""

    name: Literal["custom"] = "custom"
    _target_: str
    arguments: dict[str, Any] = field(default_factory=dict)
    warmup_steps: int = 0
