"""On every rank: short trainings by other libraries and by dtk's own strategies, one after the other."""

import dataclasses
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints
from dtk.config import schema
from dtk.config.schema import Config
from dtk.parallel.context import Context
from dtk.parallel.regions import observe
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.sharding.registry import CONFIG_TYPES
from dtk.train.assemble import assemble, begun
from dtk.train.export import export
from tests.dist.collectives_ranks import Listener, WireTap, summed
from tests.dist.ranks import placed
from tests.dist.training_ranks import config


def job(
    strategy: str, micro_batch_size: int = 8, steps: int = 7, precision: str = "fp32", more: Any = None, **keys: Any
) -> Config:
    """The configuration of a short training; `keys` are of the section `strategy`, `more` are other sections."""
    train = dataclasses.replace(config().train, steps=steps, micro_batch_size=micro_batch_size, evaluate_every=0)
    number_format: Any = {"name": precision, "compute_dtype": {"fp32": "float32", "bf16": "bfloat16"}[precision]}
    sections = {
        "strategy": CONFIG_TYPES[strategy](name=strategy, **keys),
        "train": train,
        "precision": schema.PrecisionConfig(**number_format),
        "checkpoint": schema.CheckpointConfig(every=5, at_end=False),
        "schedule": schema.ConstantSchedule(),
        **(more or {}),
    }
    return config(**sections)


def train(context: Context, cases: dict[str, tuple[Config, str | None]], folder: str) -> dict[str, dict[str, Any]]:
    """`cases`: name -> configuration, and the earlier case from whose oldest checkpoint it starts.

    Returns:
        name -> how it began, loss and gradient norm of each step, the validation loss, and of the last step what it
        declared, what it sent in communication regions and what was sent below dtk.
    """
    by_name = {}
    for name, (configuration, source) in cases.items():
        rank, paths = placed(context, configuration), RunPaths(Path(folder) / name)
        recorder = Recorder(configuration, paths, rank.rank, rank.local_rank, 0, rank.world_size, 0, rank.device)
        recorder.start()
        if configuration.engine == "accelerate":
            from accelerate.state import AcceleratorState

            AcceleratorState._reset_state()  # One run has one process.
        checkpoint = complete_checkpoints(RunPaths(Path(folder) / source))[0] if source else None
        loop = assemble(configuration, rank, paths, recorder, StopRequest(), checkpoint)
        strategy, model = loop.parts.strategy, loop.parts.model
        began, figures, listener = begun(loop) if source is None else {}, [], Listener()
        declared = loop.parts.runner.collectives(loop.batch_plan.accumulation_steps, clips=True)
        loop.measures.start(loop.state.step)
        while loop.state.step < configuration.train.steps:
            if len(figures) == 3:
                observe([listener])
                with WireTap() as tap:
                    loop.advance()
                observe([])
            else:
                loop.advance()
            figures.append((loop.last["loss"], loop.last["grad_norm"]))
        loop.checkpoints.wait()
        if configuration.checkpoint.export:
            export(configuration, model, paths, rank, strategy)
        recorder.close()
        by_name[name] = {
            "began": began,
            "figures": figures,
            "validation": loop.last["validation_loss"],
            "declared": {(call.op, call.group): (call.count, call.size_bytes) for call in declared},
            "regions": summed(listener.regions),
            "wire": summed(tap.calls),
        }
    return by_name
