"""Slow layouts, by the figures that a run recorded."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from diagnostics.causes.overlap import expert_imbalance, pipeline_bubble, pipeline_imbalance, tp_across_nodes
from diagnostics.contract.findings import text_of
from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
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


def pipeline(bubble=0.45, ideal=0.43, imbalance=1.05, busiest=3, steps=10, **parallel):
    config = {**PP, "parallel": {**PP["parallel"], **parallel}}
    shown = {"pipeline_bubble": bubble, "pipeline_bubble_ideal": ideal}
    return files({"pp": 4}, config, steps, **shown, pipeline_busiest=busiest, pipeline_imbalance=imbalance)


def experts(load=2.0, **model):
    sizes = {"width": 64, "layers": 4, "experts_per_token": 2, "expert_width": 128, "vocab_size": 256, **model}
    config = {"parallel": {"ep": 4}, "model": {"balance_loss": 0.01, **sizes}}
    return files({"dp_shard": 4}, config, expert_rank_load=load)


def decide(module, leftovers, folder):
    Example(lambda: leftovers).write(folder)
    (found,) = module.CAUSE.decide(module.CAUSE.facts(gather(folder, Limits())))
    assert text_of(found).summary
    return found


def test_too_few_micro_batches(tmp_path):
    found = decide(pipeline_bubble, pipeline(), tmp_path)
    assert (found.status, found.ranks, found.group.ranks) == ("confirmed", (0, 1, 2, 3), (0, 1, 2, 3))
    assert text_of(found).remedies[0].change == "parallel.microbatches=16"
    assert "stage 3 computes longest" in text_of(found).summary
    # With four micro-batches per stage the bubble of four stages is 3/19.
    assert found.cost.value == pytest.approx(100 * (1 - (1 - 0.43) / (1 - 3 / 19)), abs=1e-3)


def test_a_batch_that_does_not_divide_so_far_has_to_grow(tmp_path):
    leftovers = pipeline()
    leftovers["config.yaml"] = yaml.safe_dump({**PP, "train": {"global_batch_size": 12}})
    found = decide(pipeline_bubble, leftovers, tmp_path)
    assert text_of(found).remedies[0].change == "train.global_batch_size=16 parallel.microbatches=16"


def test_enough_micro_batches_are_no_finding_and_the_rest_counts_on_devices_only(tmp_path):
    assert decide(pipeline_bubble, pipeline(0.4, 0.1), tmp_path / "cpu").status == "ruled_out"
    leftovers = pipeline(0.4, 0.1)
    leftovers["config.yaml"] = yaml.safe_dump({**PP, "launcher": {"device": "cuda"}})
    found = decide(pipeline_bubble, leftovers, tmp_path / "cuda")
    assert found.status == "confirmed" and "messages" in text_of(found).summary
    uneven = pipeline(0.4, 0.1, imbalance=1.5)
    uneven["config.yaml"] = leftovers["config.yaml"]
    assert decide(pipeline_bubble, uneven, tmp_path / "uneven").status == "ruled_out", "the long stage explains it"


def test_the_longest_stage_gives_blocks_away(tmp_path):
    found = decide(pipeline_imbalance, pipeline(0.2, 0.1, 1.6, 2, blocks_per_stage=[2, 2, 9, 3]), tmp_path)
    assert (found.status, found.ranks, found.victims) == ("confirmed", (2,), (0, 1, 3))
    change = text_of(found).remedies[0].change
    assert change.startswith("'parallel.blocks_per_stage=[")
    moved = json.loads(change.strip("'").partition("=")[2])
    assert sum(moved) == 16 and moved[2] < 9 and min(moved) >= 2
    assert found.cost.value == pytest.approx(100 * 0.8 * 0.6)


@pytest.mark.parametrize("changes", [{"imbalance": 1.2}, {"imbalance": 1.6, "steps": 4}])
def test_small_differences_and_few_steps_say_nothing(tmp_path, changes):
    assert decide(pipeline_imbalance, pipeline(**changes), tmp_path).status != "confirmed"


@pytest.mark.parametrize("changes", [{"busiest": 4}, {"busiest": -1}, {"busiest": None}, {"busiest": 2, "pp": 10**14}])
def test_a_stage_that_the_layout_does_not_have_is_no_longest_one(tmp_path, changes):
    found = decide(pipeline_imbalance, pipeline(imbalance=1.6, **changes), tmp_path)
    assert "blocks_per_stage=[2" not in str(text_of(found).remedies)
    assert found.status == "undecided" or changes["busiest"] == 2


def test_a_longest_stage_that_changes_is_chance(tmp_path):
    leftovers = pipeline(imbalance=1.6)
    lines = leftovers["metrics.jsonl"].splitlines()
    odd = [line.replace('"pipeline_busiest": 3', f'"pipeline_busiest": {n % 4}') for n, line in enumerate(lines)]
    assert decide(pipeline_imbalance, {**leftovers, "metrics.jsonl": "\n".join(odd)}, tmp_path).status == "ruled_out"


def test_a_rank_whose_experts_get_all(tmp_path):
    found = decide(expert_imbalance, experts(), tmp_path)
    assert found.status == "confirmed" and "2.00 times the mean" in text_of(found).summary
    assert text_of(found).remedies[0].change == "model.balance_loss=0.1"
    share = 4 * 3 * 2 * 64 * 128 / (4 * (3 * 2 * 64 * 128 + 4 * 64**2) + 256 * 64)
    assert found.cost.value == pytest.approx(100 * share * 0.5, abs=1e-3)


@pytest.mark.parametrize("leftovers", [experts(1.6), experts(vocab_size=50_000_000), pipeline()])
def test_even_experts_small_ones_and_none(tmp_path, leftovers):
    assert decide(expert_imbalance, leftovers, tmp_path).status == "ruled_out"


@pytest.mark.parametrize(
    ("node_ranks", "tp", "status"), [(2, 4, "confirmed"), (4, 4, "ruled_out"), (2, 2, "ruled_out")]
)
def test_tensor_parallelism_over_nodes(tmp_path, node_ranks, tp, status):
    mesh_fits = {**across_nodes(node_ranks)}
    if tp == 2:
        mesh_fits["config.yaml"] = yaml.safe_dump({"parallel": {"tp": 2}})
        about = json.loads(mesh_fits["manifest.json"])
        about["mesh"] |= {"tp": 2, "dp_shard": 2}
        mesh_fits["manifest.json"] = json.dumps(about)
    found = decide(tp_across_nodes, mesh_fits, tmp_path)
    assert found.status == status
    if status == "confirmed":
        assert text_of(found).remedies[0].change == "parallel.tp=2"
        assert found.cost.value == pytest.approx(24 * 0.2, rel=0.1)


def test_tensor_parallelism_over_nodes_by_placement(tmp_path):
    leftovers = {**across_nodes(2), "config.yaml": yaml.safe_dump({"parallel": {"tp": 2}})}
    about = json.loads(leftovers["manifest.json"])
    about["mesh"] |= {"tp": 2, "dp_shard": 2, "order": ["pp", "tp", "dp_replicate", "dp_shard", "cp"]}
    found = decide(tp_across_nodes, {**leftovers, "manifest.json": json.dumps(about)}, tmp_path)
    assert found.status == "confirmed"
    assert text_of(found).remedies[0].change == "parallel.placement=tp"


def test_without_a_run_nothing_is_decided(tmp_path):
    for module in (pipeline_bubble, pipeline_imbalance, expert_imbalance):
        (found,) = module.CAUSE.decide(module.CAUSE.facts(Evidence(root=tmp_path, limits=Limits())))
        assert found.status == "undecided" and text_of(found).missing


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


EXAMPLES = {
    "overlap.pipeline_bubble": Example(pipeline, (0, 1, 2, 3)),
    "overlap.pipeline_imbalance": Example(lambda: pipeline(0.2, 0.1, 1.6, 2), (2,)),
    "overlap.expert_imbalance": Example(experts, (0, 1, 2, 3)),
    "overlap.tp_across_nodes": Example(across_nodes, (0, 1, 2, 3)),
}
