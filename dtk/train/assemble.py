"""Assembly of a loop that is ready to run from the configuration: builds every part once, in order, on this rank."""

import statistics
from pathlib import Path
from typing import Any

import torch

from diagnostics.contract.artifacts import RunPaths
from diagnostics.evidence.metrics import WARMUP_STEPS
from dtk.config.instantiate import instantiate
from dtk.config.schema import Config
from dtk.data.build import build_dataset
from dtk.data.dataset import Dataset
from dtk.parallel.context import Context
from dtk.parallel.control import list_over_ranks
from dtk.parallel.precision import LossScaler
from dtk.parallel.stop import StopRequest
from dtk.record.memory import peak_memory_bytes
from dtk.record.metrics import DEFINITIONS, peak_flops
from dtk.record.numerics import Numerics
from dtk.record.parity import parity
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
    built: tuple[Dataset, Parts] | None = None,
) -> Loop:
    """Build data, model, strategy, optimizer and checkpoints, and restore `checkpoint`.

    The recorder has been started, so that it records the collectives of the set-up. Without a checkpoint training
    starts from step 0; `built` are data and parts built before. DtkError if model, data or checkpoint cannot be used.
    """
    dataset, parts = built or (build_dataset(config.data, config.allow_targets), set_up(config, context))
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
        peak, reason = peak_flops(torch.cuda.get_device_name(context.device), config.precision.matmul_dtype)
    train, steps = config.train, config.batch_plan(context.world_size).accumulation_steps
    declared = parts.runner.collectives(steps, clips=train.clip_norm is not None)
    tokens, sent = train.global_batch_size * config.data.sequence_length, sum(c.size_bytes for c in declared)
    return Measures(tokens, parts.flops_per_token, context.world_size, peak, reason, sent)


def begun(loop: Loop) -> dict[str, Any]:
    """Return the content of parity.json; every rank must call it, before the first step."""
    context, strategy, precision = loop.context, loop.parts.strategy, loop.config.precision
    compute = precision.matmul_dtype if context.device.type == "cuda" else precision.compute_dtype
    return parity(loop.parts.model, context, strategy, compute)


def summarise(loop: Loop, dataset: Dataset) -> dict[str, Any]:
    """Return the content of summary.json; every rank must call it. Speed is the median without the warm-up."""
    speeds = list(loop.speeds)[WARMUP_STEPS:] or list(loop.speeds)
    figures: dict[str, Any] = {
        **{key: value for key, value in loop.last.items() if key not in ("lr", "grad_norm", "samples_hash")},
        "peak_memory_bytes_per_rank": list_over_ranks(loop.context, peak_memory_bytes(loop.context.device)),
        "parameters": loop.parts.parameter_count,
        "world_size": loop.context.world_size,
        "synthetic_data": bool(dataset.describe().get("synthetic")),
    }
    if speeds:
        step_time_s, mfus = statistics.median(s for s, _ in speeds), [m for _, m in speeds if m is not None]
        figures |= {"step_time_s": step_time_s, "tokens_per_s": loop.measures.tokens_per_step / step_time_s}
        figures |= {"mfu": statistics.median(mfus) if mfus else None, "steps_measured": len(speeds)}
    return {
        "schema_version": 1,
        "figures": figures,
        "speed_unit": loop.config.data.unit,
        "definitions": {key: DEFINITIONS[key] for key in [*figures, "lr", "grad_norm"] if key in DEFINITIONS},
    }
