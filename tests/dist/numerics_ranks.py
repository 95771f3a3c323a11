"""On every rank: trainings in which one rank's figures go wrong, and what its recorder then left behind."""

import json
from pathlib import Path
from typing import Any

import torch

from diagnostics.contract.artifacts import RunPaths
from dtk.config import schema
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from tests.dist.ranks import placed
from tests.dist.training_ranks import config

STEPS = 8
DRIFTS = {"drift": "blocks.1.mlp.up.weight", "drift norm": "blocks.1.mlp_norm.weight"}
WATCHED = ("non_finite", "replicas_equal", "replica_divergence")


def run(context: Context, folder: str, fault: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Train; returns this rank's events about figures."""
    record = schema.RecordConfig(level="light", replica_hash_every=2)
    train = schema.TrainConfig(
        steps=STEPS, global_batch_size=8, micro_batch_size=1, evaluate_every=-1, log_every=changes.pop("log_every", 1)
    )
    configuration = config(record=record, train=train, **changes)
    paths = RunPaths(Path(folder))
    recorder = Recorder(
        configuration, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device
    )
    recorder.start()
    context = placed(context, configuration)
    loop = assemble(configuration, context, paths, recorder, StopRequest())
    if fault == "nan" and context.rank == 1:
        loop.parts.wrapped.register_forward_hook(
            lambda module, inputs, output: output * float("nan") if loop.state.step + 1 == 5 else output
        )
    if fault == "gradient":
        parameter = dict(loop.parts.model.named_parameters())["blocks.1.mlp.up.weight"]
        parameter.register_hook(lambda gradient: gradient * float("inf") if loop.state.step + 1 == 3 else gradient)
    loop.measures.start(0)
    while loop.state.step < STEPS:
        loop.advance()
        if fault in DRIFTS and context.rank == 1 and loop.state.step == 3:
            with torch.no_grad():
                parameter = dict(loop.parts.model.named_parameters())[DRIFTS[fault]]
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                local.view(-1)[7] += 1e-4
    loop.checkpoints.wait()
    recorder.close()
    lines = paths.events(context.rank).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["name"] in WATCHED]


def run_all(context: Context, folder: str, cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """`cases`: name -> (fault, changes of the configuration)."""
    return {name: run(context, f"{folder}/{name}", fault, dict(changes)) for name, (fault, changes) in cases.items()}
