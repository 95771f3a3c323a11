"""On every rank: whole trainings with the real loop, several in one process group."""

from pathlib import Path
from typing import Any

import torch

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints
from dtk.config import schema
from dtk.config.schema import Config
from dtk.data.build import build_dataset
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.memory import peak_memory_bytes
from dtk.record.recorder import Recorder
from dtk.strategies.single import SingleConfig
from dtk.train.assemble import assemble, begun
from dtk.train.setup import set_up
from tests.dist.ranks import placed


def config(**changes: Any) -> Config:
    """A small GPT-2 on the embedded corpus; sections replaced by name."""
    sections = {
        "model": schema.GPTConfig(name="probe", vocab_size=256, context_length=64, layers=3, heads=4, width=32),
        "data": schema.StdlibData(sequence_length=32, max_bytes=400_000),
        "strategy": SingleConfig(),
        "precision": schema.PrecisionConfig(),
        "optimizer": schema.AdamWConfig(lr=3e-3),
        "schedule": schema.CosineSchedule(warmup_steps=3),
        "train": schema.TrainConfig(steps=20, global_batch_size=16, micro_batch_size=2, evaluate_every=-1),
        "checkpoint": schema.CheckpointConfig(every=0, at_end=False),
        "record": schema.RecordConfig(level="off"),
        "tracker": schema.NoTracker(),
        "launcher": schema.LauncherConfig(),
        "nccl": schema.NCCLConfig(),
        **changes,
    }
    return Config(**sections)


def train(context: Context, config: Config, folder: str, load: str | None = None) -> tuple[list[float], dict[str, Any]]:
    """Train to the end; returns the losses of all steps and the last metrics record."""
    context = placed(context, config)
    paths = RunPaths(Path(folder))
    recorder = Recorder(config, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
    recorder.start()
    newest = complete_checkpoints(RunPaths(Path(load)))[-1] if load is not None else None
    loop = assemble(config, context, paths, recorder, StopRequest(), newest)
    losses: list[float] = []
    loop.measures.start(loop.state.step)
    while loop.state.step < config.train.steps:
        loop.advance()
        losses.append(loop.last["loss"])
    loop.checkpoints.wait()
    recorder.close()
    return losses, loop.last


def train_as_recorded(
    context: Context, cases: dict[str, dict[str, Any]], folder: str
) -> dict[str, tuple[list[float], Any, list[str]]]:
    """`cases`: name -> changes of the configuration.

    Returns:
        name -> (losses, what parity.json says, samples_hash of every step).
    """
    results = {}
    for name, changes in cases.items():
        paths = RunPaths(Path(f"{folder}/{name}"))
        configuration = config(**changes)
        recorder = Recorder(configuration, paths, context.rank, 0, 0, context.world_size, 0, context.device)
        recorder.start()
        loop = assemble(configuration, placed(context, configuration), paths, recorder, StopRequest())
        began, losses, samples = begun(loop), [], []
        loop.measures.start(0)
        while loop.state.step < configuration.train.steps:
            loop.advance()
            losses.append(loop.last["loss"])
            samples.append(loop.last["samples_hash"])
        loop.checkpoints.wait()
        recorder.close()
        results[name] = (losses, began, samples)
    return results


def save_and_load(context: Context, cases: list[tuple[str, dict[str, Any], str | None]], folder: str) -> dict[str, Any]:
    """`cases`: (name, changes, name of the case whose checkpoint to load)."""
    results = {}
    for name, changes, source in cases:
        load = f"{folder}/{source}" if source else None
        results[name], last = train(context, config(**changes), f"{folder}/{name}", load)
        if "validation_loss" in last:
            results[f"{name}: validation"] = last["validation_loss"]
    return results


def evaluate(context: Context, changes: dict[str, Any], folder: str) -> dict[str, float]:
    """Evaluate an untrained model on the held-out split."""
    from dtk.train.evaluation import evaluate as run

    configuration = config(**changes)
    context = placed(context, configuration)
    parts = set_up(configuration, context)
    return run(configuration, context, build_dataset(configuration.data), parts)


def peak_while_setting_up(context: Context, changes: dict[str, Any], folder: str) -> tuple[int, int]:
    """Largest growth of resident memory during set-up, and the bytes of the whole model."""
    configuration = config(**changes)
    torch.set_num_threads(1)
    set_up(config(strategy=changes["strategy"]), placed(context, changes["strategy"]))
    before = peak_memory_bytes(context.device)
    parts = set_up(configuration, placed(context, configuration))
    return peak_memory_bytes(context.device) - before, 4 * parts.parameter_count
