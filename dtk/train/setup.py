"""From the configuration to what a step needs: model, strategy, optimizer. Runs once per rank."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from dtk.config.schema import Config
from dtk.models.build import build_model
from dtk.models.gpt import GPT
from dtk.models.hf import load_gpt2
from dtk.models.initialize import initialize_model
from dtk.parallel.context import Context
from dtk.parallel.precision import allow_tf32
from dtk.strategies.base import Strategy
from dtk.strategies.registry import build_strategy
from dtk.train.optimizer import InBackward, parameter_groups, recipe


@dataclass(frozen=True, slots=True)
class Parts:
    """What is trained, and how it is spread over ranks."""

    model: nn.Module
    """The model itself: its parameter names are those of checkpoints."""
    wrapped: nn.Module
    """What forward is called on; the same object unless a wrapper (DDP) is around it."""
    strategy: Strategy
    optimizer: Optimizer
    parameter_count: int


def set_up(
    config: Config,
    context: Context,
    make: Callable[[Config], nn.Module] | None = None,
    fill: Callable[[nn.Module, Config], None] | None = None,
) -> Parts:
    """Build model, strategy and optimizer for this rank.

    Args:
        config: resolved configuration.
        context: this rank.
        make: how the model comes to be before it is spread over ranks; None = as a run does.
        fill: how it gets its values once it has memory; None = as a run does.

    Raises:
        DtkError: the model or its pretrained weights cannot be used.
    """
    torch.use_deterministic_algorithms(config.train.deterministic)
    allow_tf32(config.precision)
    model = (make or _model)(config)
    parameter_count = sum(p.numel() for p in model.parameters())
    if config.train.activation_checkpoint_every:
        _checkpoint_activations(model, config.train.activation_checkpoint_every)
    if config.train.compile:
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile()
    strategy = build_strategy(config.strategy, context, config.precision)
    wrapped = strategy.wrap(model, lambda module: (fill or _fill)(module, config))
    build = recipe(config.optimizer, model.parameters())
    groups = parameter_groups(model, config.optimizer.weight_decay)
    if config.optimizer.in_backward:
        optimizer: Optimizer = InBackward(groups, build)
    else:
        optimizer = strategy.build_optimizer(groups, build)
    return Parts(model, wrapped, strategy, optimizer, parameter_count)


def _model(config: Config) -> nn.Module:
    """On the meta device; a custom model that cannot say how it starts is built with values.

    Such a model starts from torch's generator seeded alike on every rank, and each rank holds it
    whole for a moment.
    """
    if config.model.architecture == "custom":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = build_model(config.model, config.allow_targets)
        if not hasattr(model, "initial"):
            return model
        return model.to("meta")
    with torch.device("meta"):
        return build_model(config.model, config.allow_targets)


def _fill(model: nn.Module, config: Config) -> None:
    """Fill in the initial values, one parameter at a time, from the seed or from pretrained weights."""
    if isinstance(model, GPT) and model.config.pretrained:
        load_gpt2(model, model.config.pretrained)
    else:
        initialize_model(model, config.seed)


def _checkpoint_activations(model: nn.Module, every: int) -> None:
    """Recompute every k-th block in backward (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost).

    The block's forward is replaced, not the block, so parameter names stay as they are.
    """
    for i, block in enumerate(model.blocks):  # type: ignore[arg-type]
        if i % every == 0:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
