"""The simulated engine against real ranks: the tensors' peak within 2 %, and the very collectives that are recorded."""

import pytest

from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate
from tests.dist.ranks import run_ranks

RANKS = 2
BERT = ["data=classification", "data.samples_per_class=20", "model.layers=2"]
GPT = ["data=synthetic", "model.layers=2"]
CASES = {
    "gpt2_tiny zero1": [*GPT, "model=gpt2_tiny", "strategy=zero1", "train.activation_checkpoint_every=1"],
    "bert_tiny zero2": [*BERT, "model=bert_tiny", "strategy=zero2"],
    "llama_tiny fsdp accumulated": [
        *(*GPT, "model=llama_tiny", "strategy=fsdp", "data.vocab_size=512", "train.global_batch_size=16")
    ],
    "gpt2_tiny hsdp": [*GPT, "model=gpt2_tiny", "strategy=hsdp", "strategy.dp_replicate=2"],
}
COMMON = ["train.micro_batch_size=4", "train.evaluate_every=-1", "checkpoint=off", "record=off", "launcher.device=cpu"]


@pytest.mark.timeout(120)
def test_predicted_peaks_and_collectives(tmp_path):
    jobs = {name: planned_job([*overrides, *COMMON], None, RANKS) for name, overrides in CASES.items()}
    plain = {name: job.plain for name, job in jobs.items()}
    actual = run_ranks("tests.dist.plan_ranks:measure_all", RANKS, plain, str(tmp_path))
    for name, job in jobs.items():
        predicted = simulate(job.config, RANKS)
        peak = max(results[name]["tensors"] for results in actual)
        assert predicted.memory.peak_bytes == pytest.approx(peak, rel=0.02), name
        recorded = {(one.op, one.group): (one.count, one.size_bytes) for one in predicted.traffic}
        assert recorded == actual[0][name]["calls"], name
