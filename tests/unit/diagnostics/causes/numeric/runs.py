"""Evidence of a dtk run whose metrics.jsonl is a real file."""

import json
from typing import Any

from diagnostics.contract.artifacts import RunPaths, Status
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Owner, RankError, RunEvidence
from diagnostics.evidence.reader import Source
from diagnostics.evidence.readers import step_records
from tests.traits import recorded_traits

CONFIG: dict[str, Any] = {
    "strategy": {"name": "ddp"},
    "precision": {"compute_dtype": "float32", "initial_loss_scale": None},
    "train": {"clip_norm": 1.0},
    "optimizer": {"lr": 0.002, "in_backward": False},
    "record": {"level": "light", "replica_hash_every": 100},
}


def write(folder, records):
    """Records as dicts, or lines as they are."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def run(folder, events=None, world_size=2, errors=(), last_step=None, **config):
    """`events`: rank -> its events."""
    settings = {**CONFIG, **config}
    record = RunEvidence(
        root=RunPaths(folder).root,
        status=Status("finished", step=last_step),
        config=settings,
        manifest=recorded_traits(settings["strategy"]["name"]),
        summary={},
        plan={},
        heartbeats={},
        events=events if events is not None else {rank: [] for rank in range(world_size)},
    )
    facts = recorded(folder).facts if (folder / "metrics.jsonl").exists() else []
    return Evidence(folder, Limits(), run=record, world_size=world_size, errors=list(errors), facts=facts)


def recorded(folder, limits=None):
    """What the reader makes of the file."""
    return step_records.read(Source(folder / "metrics.jsonl", "metrics.jsonl", b"", limits or Limits(), Owner()))


def non_finite(step, figure="loss", value="nan", **fields):
    return {"kind": "event", "name": "non_finite", "step": step, "figure": figure, "value": value, **fields}


def foreign(folder, *messages):
    errors = [RankError(rank, "error.json", 0, "RuntimeError", text) for rank, text in enumerate(messages)]
    return Evidence(root=folder, limits=Limits(), errors=errors)


def equal(step):
    """The event of replicas that are equal."""
    return {"name": "replicas_equal", "step": step, "groups": 1}


def drift(step, ranks, group, tie=False, parameter=None):
    """The event of ranks that differ from the others of their group."""
    about = {"parameter": parameter, "parameters_affected": int(parameter is not None), "parameters_seen": 40}
    return {"name": "replica_divergence", "step": step, "ranks": ranks, "group": group, "tie": tie, **about}


def over_tp(step, ranks, group, parameter="inputs", tie=False):
    """The same for a tensor-parallel group."""
    return {**drift(step, ranks, group, tie, parameter), "dimension": "tp"}
