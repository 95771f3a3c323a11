"""Construction of the model, the strategy and the optimizer from the configuration. Runs once per rank."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from dtk.config.schema import Config
from dtk.dimensions import cp, ep, inside, tp
from dtk.dimensions.pp import Messages, cut, joined, shared_parameters
from dtk.models.build import build_model, build_on_meta, check_blocks
from dtk.models.gpt import GPT
from dtk.models.hf import load_gpt2
from dtk.models.initialize import initialize_model
from dtk.parallel.blocks import blocks_of
from dtk.parallel.context import Context
from dtk.parallel.precision import allow_tf32
from dtk.sharding.base import Strategy, owned_parameters
from dtk.sharding.registry import build_strategy
from dtk.tasks.base import Task
from dtk.tasks.build import build_task
from dtk.tasks.cross_entropy import Vocabulary
from dtk.train.optimizer import InBackward, parameter_groups, recipe
from dtk.train.pipeline import Clock, Pipelined
from dtk.train.runner import Accumulate, ExpertLoads, Stage

Runner = Accumulate | Pipelined


@dataclass(frozen=True, slots=True)
class Parts:
    """What is trained, and how it is distributed over ranks."""

    model: nn.Module
    """The unwrapped model: its parameter names are used in checkpoints."""
    wrapped: nn.Module
    """The module whose forward is called; differs from `model` only if a wrapper (DDP) surrounds it."""
    strategy: Strategy
    optimizer: Optimizer
    parameter_count: int
    runner: Runner
    """Runs forward and backward over the micro-batches of a step."""
    task: Task
    """Defines the loss and the metrics."""
    flops_per_token: int | None = None
    """FLOPs of the whole model, forward and backward; None if the model does not declare them."""


def set_up(
    config: Config,
    context: Context,
    make: Callable[[Config], nn.Module] | None = None,
    fill: Callable[[nn.Module, Config], None] | None = None,
) -> Parts:
    """Build model, strategy and optimizer for this rank.

    `make` builds the model before it is distributed over ranks, and `fill` initializes its values once it is
    materialized; None does as a run. DtkError if the model or its pretrained weights cannot be used.
    """
    torch.use_deterministic_algorithms(config.train.deterministic)
    allow_tf32(config.precision)
    model = (make or _model)(config)
    check_blocks(config, model)
    parameter_count = sum(p.numel() for p in model.parameters())
    flops = getattr(model, "flops_per_token", None)
    flops_per_token = flops(config.data.sequence_length) if flops else None
    strategy = build_strategy(config.strategy, context, config.precision, config.engine)
    strategy.configure(config)
    vocabulary = None
    if context.mesh.tp > 1 and config.model.architecture != "encoder":
        vocabulary = Vocabulary(strategy.axes["tp"], config.parallel.loss_parallel)
    task = build_task(config, vocabulary)

    tokens = cp.Part(strategy.axes["cp"], config.parallel.context) if context.mesh.cp > 1 else None
    spread = functools.partial(_spread, config, strategy, tokens, lambda module: (fill or _fill)(module, config))
    runner: Runner
    loads = ExpertLoads(context, config.model) if config.model.architecture == "moe" else None
    if context.mesh.pp == 1:
        whole = spread(model)
        wrapped, runner = whole.wrapped, Accumulate(strategy, whole, task, tokens, loads)
    else:
        runner = _pipelined(config, strategy, model, make or _model, spread, task, tokens, loads)
        wrapped = model = joined([stage.model for stage in runner.stages.values()])
    build = recipe(config.optimizer, model.parameters(), config.allow_targets)
    groups, tier = parameter_groups(model, config.optimizer.weight_decay), strategy.tier
    paged = build if tier is None else tier.paged(build)
    in_backward = config.optimizer.in_backward
    optimizer = InBackward(groups, paged) if in_backward else strategy.build_optimizer(groups, paged)
    if tier is not None:
        tier.reserve(owned_parameters(optimizer), build)
    return Parts(model, wrapped, strategy, optimizer, parameter_count, runner, task, flops_per_token)


def _spread(
    config: Config,
    strategy: Strategy,
    tokens: cp.Part | None,
    fill: Callable[[nn.Module], None],
    part: nn.Module,
    first_block: int = 0,
) -> Stage:
    """Distribute a model, or a stage that begins with this block, along each mesh dimension, the strategy's last."""
    mesh, train = strategy.context.mesh, config.train
    if mesh.tp > 1:
        tp.cut_model(config, part, strategy)
    if tokens is not None:
        cp.spread_attention(part, tokens)
    if mesh.ep > 1:
        ep.cut_model(part, strategy)
    blocks = blocks_of(part)
    for i, block in enumerate(blocks, first_block):
        # Activation checkpointing: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". The forward of
        # the block is replaced, not the block, so that parameter names do not change.
        if train.activation_checkpoint_every and i % train.activation_checkpoint_every == 0:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        if train.compile:
            block.compile()
    own = range(first_block, first_block + len(blocks))
    return Stage(
        part,
        strategy.wrap(part, fill),
        lambda steps: inside(config, mesh, steps, strategy.partial_shapes(part), own),
        first_block,
    )


def _model(config: Config) -> nn.Module:
    """Build the model on the meta device; a custom model without initialization gets equal values on all ranks."""
    if config.model.architecture == "custom":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = build_model(config.model, config.allow_targets)
        return model.to("meta") if hasattr(model, "initial") else model
    return build_on_meta(config.model, config.allow_targets)


def _pipelined(
    config: Config,
    strategy: Strategy,
    model: nn.Module,
    make: Callable[[Config], nn.Module],
    spread: Callable[[nn.Module, int], Stage],
    task: Task,
    tokens: cp.Part | None,
    loads: ExpertLoads | None,
) -> Pipelined:
    """Cut this rank's stages out of whole models, distribute them, and connect them with those of other ranks."""
    context, axis, parallel = strategy.context, strategy.axes["pp"], config.parallel
    pipeline, first = parallel.pipeline(1), context.mesh.index("pp", context.rank)
    cuts, stages = config.stage_blocks(len(blocks_of(model))), {}
    for number in pipeline.stages_of(first):
        part = cut(model if number == first else make(config), number, cuts)
        stages[number] = spread(part, cuts[number].start)
    parts = context.mesh.tp if parallel.sequence_parallel else 1

    def stream(tokens: Sequence[int]) -> tuple[int, ...]:
        return tokens[0], tokens[1] // parts, config.model.width

    micro_batch = stream((config.train.micro_batch_size, config.data.sequence_length // context.mesh.cp))
    message_bytes = prod(micro_batch) * strategy.stream_dtype.itemsize
    end: Any = stages[max(stages) if axis.rank == axis.size - 1 else min(stages)].model
    tied = [name for name in end.before if name in end.after]
    shared = shared_parameters(end, axis, context.mesh.group("pp", context.rank), tied)
    way = strategy, parallel.pipeline, stages, Messages(axis), stream, message_bytes, shared
    return Pipelined(*way, Clock(context.device), task, tokens, loads)


def _fill(model: nn.Module, config: Config) -> None:
    if isinstance(model, GPT) and model.config.pretrained:
        load_gpt2(model, model.config.pretrained)
    else:
        initialize_model(model, config.seed)
