"""Model states against the device: confirmed only where they fill it."""

from dataclasses import replace
from pathlib import Path

from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.out_of_memory import ran_out
from diagnostics.causes.memory.model_states import decide
from diagnostics.contract.findings import text_of
from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.analysis.memory.test_model_size import paper
from tests.unit.diagnostics.causes.memory.oom_texts import TRUE_DEMAND, job_of


def out_of_memory(folder: Path, size: ModelSize) -> JobMemory:
    """An A100 with 39.59 GiB that is full of tensors."""
    evidence = gather(job_of(folder, TRUE_DEMAND), Limits())
    return JobMemory(evidence, size, {3: RankMemory(3)}, ran_out=ran_out(evidence))


def test_states_that_do_not_fit_are_confirmed_with_what_sharding_saves(tmp_path):
    (found,) = decide(out_of_memory(tmp_path, paper("ddp", 1)))
    assert found.status == "confirmed"
    assert found.ranks == tuple(range(64))
    text = text_of(found)
    assert "112 GiB" in text.summary
    assert text.remedies[0].saves == "110 GiB of 112 GiB"
    assert decide(out_of_memory(tmp_path, paper("zero3", 64)))[0].status == "ruled_out"


def test_without_a_device_or_a_model_it_stays_open(tmp_path):
    job = out_of_memory(tmp_path, paper("ddp", 1))
    job.ran_out = [replace(record, total_bytes=None) for record in job.ran_out]
    (found,) = decide(job)
    assert (found.status, text_of(found).measured) == ("undecided", "model states 112 GiB a rank")
    (unknown,) = decide(out_of_memory(tmp_path, ModelSize(64, "")))
    assert unknown.status == "undecided"
    assert "optimizer" in text_of(unknown).missing
