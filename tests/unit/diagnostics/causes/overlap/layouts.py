"""Runs whose layout divides the work badly, by the figures that they recorded."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from diagnostics.contract.findings import text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import MIB, STEPS, backward, forward
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.ring_bytes import run_files

TRAIN = {"global_batch_size": 32, "micro_batch_size": 4}
PP = {"train": TRAIN, "parallel": {"pp": 4}, "model": {"layers": 16}}


def files(mesh, config, steps=10, **figures):
    record = {"loss": 3.0, "step_time_s": 0.1, **figures}
    lines = [json.dumps({"step": step, **record}) for step in range(1, steps + 1)]
    return {
        **run_files(mesh, yaml.safe_dump(config), state="finished", step=steps),
        "metrics.jsonl": "".join(f"{line}\n" for line in lines),
    }


def pipeline(bubble=0.45, ideal=0.43, imbalance=1.05, busiest=3, steps=10, blocks=(4, 4, 4, 4), **parallel):
    config = {**PP, "parallel": {**PP["parallel"], **parallel}}
    shown = {"pipeline_bubble": bubble, "pipeline_bubble_ideal": ideal}
    run = files({"pp": 4}, config, steps, **shown, pipeline_busiest=busiest, pipeline_imbalance=imbalance)
    manifest = {**json.loads(run["manifest.json"]), "stage_blocks": list(blocks)}
    return {**run, "manifest.json": json.dumps(manifest)}


def experts(load=2.0, loads=None, mesh=(("dp_shard", 4),), ep=4, **model):
    sizes = {"width": 64, "layers": 4, "experts_per_token": 2, "expert_width": 128, "vocab_size": 256, **model}
    cut = {name: size for name, size in mesh if name in ("tp", "pp")}
    config = {"parallel": {"ep": ep, **cut}, "model": {"balance_loss": 0.01, **sizes}}
    per_rank = {} if loads is None else {"expert_load_per_rank": loads}
    return files({**dict(mesh), "ep": ep}, config, expert_rank_load=load, **per_rank)


def decide(module, leftovers, folder):
    Example(lambda: leftovers).write(folder)
    (result,) = module.CAUSE.decide(module.CAUSE.facts(gather(folder, Limits())))
    assert text_of(result).summary
    return result


def across_nodes(node_ranks=2, tp=4):
    """Traces of four ranks whose slow collectives are those of a tensor-parallel group."""
    with TemporaryDirectory() as folder:
        sim = Simulator()
        for step in range(STEPS):
            with sim.marked(f"ProfilerStep#{step + 5}"):
                for compute in (forward, backward):
                    compute(
                        sim, after_layer=lambda layer: sim.wait(sim.collective("all_reduce", MIB, 200.0, group="tp"))
                    )
        traces = {f"traces/rank_{n:05d}.json": path.read_bytes() for n, path in enumerate(write(sim, Path(folder)))}
    run = run_files({"tp": tp}, yaml.safe_dump({"parallel": {"tp": tp}}), state="finished")
    manifest = json.loads(run["manifest.json"])
    manifest["topology"] = {"world_size": 4, "nproc": node_ranks}
    return {**run, "manifest.json": json.dumps(manifest), **traces}
