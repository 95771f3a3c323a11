"""From the configuration to a loop that is ready to run: every part built once, in order, on this rank."""

from pathlib import Path
from typing import Any

import torch

from diagnostics.contract.artifacts import RunPaths
from dtk.config.instantiate import instantiate
from dtk.config.schema import Config
from dtk.data.build import build_dataset
from dtk.data.dataset import Dataset
from dtk.parallel.context import Context
from dtk.parallel.precision import LossScaler
from dtk.parallel.stop import StopRequest
from dtk.record.metrics import peak_flops
from dtk.record.numerics import Numerics
from dtk.record.recorder import Recorder
from dtk.train.callbacks import Training, build_callbacks
from dtk.train.checkpoint import Checkpoints, LoopState
from dtk.train.loop import Loop
from dtk.train.progress import Measures, Progress
from dtk.train.schedule import Schedule
from dtk.train.setup import Parts, set_up


def assemble(
    config: Config,
    context: Context,
    paths: RunPaths,
    recorder: Recorder,
    stop: StopRequest,
    checkpoint: Path | None = None,
    made: tuple[Dataset, Parts] | None = None,
) -> Loop:
    """Build data, model, strategy, optimizer and checkpoints, and restore what `checkpoint` holds.

    Args:
        config: resolved configuration.
        context: this rank.
        paths: the run folder.
        recorder: started already, so that it sees the collectives of the set-up.
        stop: asked at every step.
        checkpoint: a complete one to continue from; None = from the start.
        made: data and parts that are there already; None = they are built here.

    Raises:
        DtkError: model, data or checkpoint cannot be used.
    """
    dataset, parts = made or (build_dataset(config.data, config.allow_targets), set_up(config, context))
    about_job: dict[str, Any] = {"model": config.model.name, "strategy": config.strategy.name, "seed": config.seed}
    about_job["global_batch_size"] = config.train.global_batch_size
    checkpoints = Checkpoints(config.checkpoint, paths, context, recorder, about_job, parts.strategy)
    checkpoints.clean()
    callbacks = build_callbacks(Training(config, context, parts.model, parts.optimizer, parts.strategy, recorder))
    checkpoints.more = callbacks.tensors
    state = LoopState() if checkpoint is None else checkpoints.load(checkpoint, parts.model, parts.optimizer)
    scaler = LossScaler(config.precision.initial_loss_scale)
    if state.step and scaler.enabled:
        scaler.scale, scaler.good_steps = state.loss_scale, state.good_steps
    if checkpoint is not None:
        callbacks.restore(checkpoint)
    section, own = config.schedule, None
    if section.name == "custom":
        own = instantiate(section._target_, section.arguments, config.allow_targets, Schedule)
    progress = Progress(config.train.steps, context.world_size, state.step, config.data.unit)
    numerics = Numerics(config.record, recorder, context, parts.strategy.replicas)
    speed, plan = measures(config, context, parts), config.batch_plan(context.world_size)
    job = (config, context, dataset, parts, recorder, checkpoints, stop, scaler, state)
    return Loop(*job, speed, progress, numerics, plan, callbacks, own)


def measures(config: Config, context: Context, parts: Parts) -> Measures:
    """Return the figures needed to turn step times into tokens/s and MFU."""
    peak, reason = (None, "the CPU has no published peak")
    if context.device.type == "cuda":
        dtype = "tf32" if config.precision.tf32 else config.precision.compute_dtype
        peak, reason = peak_flops(torch.cuda.get_device_name(context.device), dtype)
    train, steps = config.train, config.batch_plan(context.world_size).accumulation_steps
    declared = parts.runner.collectives(steps, clips=train.clip_norm is not None)
    tokens, sent = train.global_batch_size * config.data.sequence_length, sum(c.size_bytes for c in declared)
    return Measures(tokens, parts.flops_per_token, context.world_size, peak, reason, sent)
