"""The simulated engine against real ranks: the tensors' peak within 2%, and the very collectives that are recorded."""

import importlib.util
import json

import pytest

from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.formulas.stages import rank_memory, stage_declarations
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate
from tests.dist.ranks import run_ranks

RANKS = 2
BERT = ["data=classification", "data.samples_per_class=20", "model.layers=2"]
GPT = ["data=synthetic", "model.layers=2"]
CASES = {
    "gpt2_tiny zero1": [*GPT, "model=gpt2_tiny", "strategy=zero1", "train.activation_checkpoint_every=1"],
    "gpt2_tiny ddp int8": [
        *(*GPT, "model=gpt2_tiny", "strategy=ddp", "strategy.communication_hook=int8"),
        "data.sequence_length=8",  # Copies beside a bucket are a fifth of the peak.
    ],
    "bert_tiny zero2": [*BERT, "model=bert_tiny", "strategy=zero2"],
    "llama_tiny fsdp accumulated": [
        *(*GPT, "model=llama_tiny", "strategy=fsdp", "data.vocab_size=512", "train.global_batch_size=16")
    ],
    "moe_tiny ep": ["model=moe_tiny", *GPT, "data.vocab_size=512", "strategy=moe", "model.capacity_factor=1.25"],
    "gpt2_tiny ring": [*GPT, "model=gpt2_tiny", "strategy=ring", "train.activation_checkpoint_every=1"],
    "llama_tiny ulysses": [
        *(*GPT, "model=llama_tiny", "strategy=ulysses", "data.vocab_size=512", "train.global_batch_size=8"),
    ],
    "gpt2_tiny fsdp int8": [
        *(*GPT, "model=gpt2_tiny", "strategy=fsdp", "strategy.quantized_weights=true"),
        *("strategy.quantized_gradients=true", "data.sequence_length=8"),  # Rounding copies a sixth of the peak.
    ],
    "moe_tiny tp ep": ["model=moe_tiny", *GPT, "data.vocab_size=512", "strategy=tp", "parallel.ep=2"],
    "gpt2_tiny zero_bubble": [
        *(*GPT, "model=gpt2_tiny", "strategy=ddp", "parallel.pp=2", "parallel.schedule=zero_bubble"),
        "train.global_batch_size=8",
    ],
    "llama_tiny zbv": [
        *("model=llama_tiny", "data=synthetic", "data.vocab_size=512", "strategy=ddp", "parallel.pp=2"),
        *("parallel.schedule=zbv", "parallel.stages_per_rank=2", "train.global_batch_size=16"),
    ],
    "gpt2_tiny hsdp": [*GPT, "model=gpt2_tiny", "strategy=hsdp", "strategy.dp_replicate=2"],
}
COMMON = ["train.micro_batch_size=4", "train.evaluate_every=-1", "checkpoint=off", "record=off", "launcher.device=cpu"]


@pytest.mark.timeout(600)
def test_predicted_peaks_and_collectives(tmp_path):
    jobs = {name: planned_job([*overrides, *COMMON], None, RANKS) for name, overrides in CASES.items()}
    plain = {name: job.plain for name, job in jobs.items()}
    actual = run_ranks("tests.dist.plan_ranks:measure_all", RANKS, plain, str(tmp_path), timeout_s=500)
    for name, job in jobs.items():
        predicted = simulate(job.config, RANKS)
        peak = max(results[name]["tensors"] for results in actual)
        assert predicted.memory.peak_bytes == pytest.approx(peak, rel=0.02), name
        if "int8" in name:
            assert closed_form(job.config, RANKS).memory.peak_bytes == pytest.approx(peak, rel=0.02), name
        recorded = {
            (transfer.op, transfer.group): (transfer.count, transfer.size_bytes) for transfer in predicted.traffic
        }
        assert recorded == actual[0][name]["calls"], name


SMALL_BATCH = ["model=gpt2_tiny", "data=synthetic", "model.layers=6", "data.sequence_length=8", "train.clip_norm=null"]
"""Gradients are a large part of the peak."""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("strategy", "ranks", "least"), [("single", 1, 0.18), ("fsdp", 2, 0.1), ("zero2", 2, 0.0)])
def test_the_optimizer_in_backward_saves_what_the_plan_says(strategy, ranks, least, tmp_path):
    """Of the peak, nothing under zero2: it stands where the first unit's whole gradient is reduced, in both cases."""
    batch = ["train.global_batch_size=2", f"train.micro_batch_size={2 // ranks}", *COMMON[1:]]
    jobs = {
        in_backward: planned_job(
            [*SMALL_BATCH, *batch, f"strategy={strategy}", f"optimizer.in_backward={in_backward}"], None, ranks
        )
        for in_backward in ("false", "true")
    }
    plain = {name: job.plain for name, job in jobs.items()}
    actual = run_ranks("tests.dist.plan_ranks:measure_all", ranks, plain, str(tmp_path))
    measured = {name: max(results[name]["tensors"] for results in actual) for name in jobs}
    predicted = {name: closed_form(job.config, ranks).memory.peak_bytes for name, job in jobs.items()}
    for name, peak in predicted.items():
        assert measured[name] == pytest.approx(peak, rel=0.002), name
    assert predicted["true"] <= (1 - least) * predicted["false"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "overrides", [["strategy=zero1", "strategy.offload=optimizer"], ["strategy=fsdp", "strategy.offload=parameters"]]
)
def test_bytes_to_and_from_a_file_are_those_that_the_plan_says(overrides, tmp_path):
    """Parameters are read for every gather, and each micro-batch has some."""
    batch = ["train.global_batch_size=4", "train.micro_batch_size=1"]
    where = ["strategy.offload_to=nvme", f"strategy.offload_folder={tmp_path}"]
    job = planned_job([*SMALL_BATCH, *batch, *COMMON[1:], *overrides, *where], None, RANKS)
    ranks = run_ranks("tests.dist.tier_ranks:measure", RANKS, job.plain, str(tmp_path), 1)
    planned = closed_form(job.config, RANKS).memory
    assert max(rank["moved_bytes"] for rank in ranks) == planned.paged_bytes > 0
    assert planned.file_bytes > 0 and planned.host_bytes == (0 if "zero1" in overrides[0] else planned.host_bytes)


LLAMA_TINY = ["model=llama_tiny", "data.vocab_size=512"]
LAYOUTS = {
    "1f1b ddp": ["model=gpt2_tiny", "strategy=ddp", "parallel.pp=2"],
    "gpipe fsdp": [*LLAMA_TINY, "strategy=fsdp", "parallel.pp=2", "parallel.schedule=gpipe"],
    "interleaved recomputed": [
        *("model=gpt2_tiny", "strategy=ddp", "parallel.schedule=interleaved_1f1b", "parallel.stages_per_rank=2"),
        *("parallel.pp=2", "train.activation_checkpoint_every=2"),
    ],
    "tp": ["model=gpt2_tiny", "strategy=tp"],
    "tp fsdp recomputed": [*LLAMA_TINY, "strategy=fsdp", "parallel.tp=2", "train.activation_checkpoint_every=1"],
    "tp repeated": [*LLAMA_TINY, "strategy=tp", "parallel.sequence_parallel=false", "parallel.loss_parallel=false"],
}


@pytest.mark.timeout(240)
def test_the_closed_form_of_every_rank_of_a_model_that_is_cut(tmp_path):
    """Peaks within 1%, and the very calls that are recorded, with six micro-batches in flight over two stages."""
    batch = ["data=synthetic", "data.sequence_length=128", "train.global_batch_size=12"]
    common = [*COMMON[1:], *batch, "train.micro_batch_size=2"]
    jobs = {name: planned_job([*overrides, *common], None, RANKS) for name, overrides in LAYOUTS.items()}
    plain = {name: job.plain for name, job in jobs.items()}
    actual = run_ranks("tests.dist.plan_ranks:measure_all", RANKS, plain, str(tmp_path))
    for name, job in jobs.items():
        for rank, results in enumerate(actual):
            place = rank if job.config.parallel.pp > 1 else 0
            predicted = rank_memory(job.config, RANKS, place)
            assert predicted.peak_bytes == pytest.approx(results[name]["tensors"], rel=0.01), f"{name}, rank {rank}"
            declared: dict[tuple[str, str], tuple[int, int]] = {}
            for call in stage_declarations(job.config, RANKS, place):
                count, size = declared.get((call.op, call.group), (0, 0))
                declared[call.op, call.group] = count + call.count, size + call.size_bytes
            assert declared == results[name]["calls"], f"{name}, rank {rank}"
        whole = closed_form(job.config, RANKS)
        simulated, peak = simulate(job.config, RANKS), max(results[name]["tensors"] for results in actual)
        assert simulated.memory.peak_bytes == pytest.approx(peak, rel=0.01), name
        calls = {(call.op, call.group): (call.count, call.size_bytes) for call in simulated.traffic}
        assert calls in [results[name]["calls"] for results in actual], name
        places = range(job.config.parallel.pp)
        assert whole.memory.peak_bytes == max(rank_memory(job.config, RANKS, place).peak_bytes for place in places)


@pytest.mark.timeout(200)
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="the package deepspeed is not installed")
def test_deepspeed_holds_what_the_plan_says(tmp_path):
    """Whole buckets and small ones, which stage 3 fills several times."""
    small = tmp_path / "ds_config.json"
    small.write_text(json.dumps({"zero_optimization": {"reduce_bucket_size": 400_000}}))
    base = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=32", *COMMON, "train.global_batch_size=8"]
    jobs = {
        f"{stage} {bucket}": planned_job([*base, f"strategy=deepspeed_zero{stage}", *keys], None, RANKS)
        for stage in (1, 2, 3)
        for bucket, keys in (("whole", []), ("small", [f"strategy.config={small}"]))
    }
    plain = {name: job.plain for name, job in jobs.items()}
    actual = run_ranks("tests.dist.plan_ranks:measure_all", RANKS, plain, str(tmp_path))
    for name, job in jobs.items():
        peak, planned = max(results[name]["tensors"] for results in actual), closed_form(job.config, RANKS).memory
        # Measured again, stage 3 is at times 1% above the plan.
        assert planned.peak_bytes == pytest.approx(peak, rel=0.02), name
