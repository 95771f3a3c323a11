"""Model states and activations against the device: confirmed only where memory ran out or is about to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.analysis.memory import model_size as facts
from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.analysis.memory.model_size import Facts
from diagnostics.detectors.memory import demand
from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.run_folder import read
from tests.unit.diagnostics.causes.memory.test_out_of_memory import TRUE_DEMAND, job

GB = 10**9
GIB = 1 << 30


def paper(strategy: str, shards: int) -> Facts:
    """7.5 billion parameters, 16 bytes each all in all, on 64 ranks: table of the ZeRO paper, in our fp32 terms."""
    whole = 30 * GB
    return Facts(64, strategy, whole, whole, 2 * whole, "test", shards)


def test_states_follow_the_formulas_of_zero():
    assert paper("ddp", 1).states().total == 120 * GB
    assert paper("zero1", 1).states().total == 60 * GB + 60 * GB // 64
    assert paper("zero3", 64).states().total == pytest.approx(120 * GB / 64, rel=1e-6)
    assert paper("zero3", 64).states(1024).total == pytest.approx(120 * GB / 1024, rel=1e-6)
    hybrid = replace(paper("hsdp", 8), replicas=8)
    assert hybrid.states().total == pytest.approx(120 * GB / 8, rel=1e-6)
    assert Facts(64, "").states() is None


@pytest.mark.parametrize(
    ("layers", "width", "vocab", "count"), [(12, 768, 50257, 124_439_808), (48, 1600, 50257, 1_557_611_200)]
)
def test_parameters_of_gpt2_by_the_configuration(tmp_path, layers, width, vocab, count):
    model = {"architecture": "gpt", "layers": layers, "width": width, "vocab_size": vocab, "context_length": 1024}
    config = {"model": model, "strategy": {"name": "ddp"}, "optimizer": {"name": "adamw"}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    found = facts.read(Evidence(tmp_path, Limits(), run=read(tmp_path, Limits(), []), world_size=2))
    assert found.parameter_bytes == 4 * count
    assert found.optimizer_bytes == 8 * count


def out_of_memory(folder: Path, size: Facts) -> Situation:
    """An A100 with 39.59 GiB that is full of tensors."""
    from diagnostics.analysis.memory.out_of_memory import ran_out

    evidence = gather(job(folder, TRUE_DEMAND), Limits())
    return Situation(evidence, size, {3: RankMemory(3)}, ran_out=ran_out(evidence))


def test_states_that_do_not_fit_are_confirmed_with_what_sharding_saves(tmp_path):
    found = demand.model_states(out_of_memory(tmp_path, paper("ddp", 1)))
    assert found.status == "confirmed"
    assert "112 GiB" in found.summary
    assert found.remedies[0].saves == "110 GiB of 112 GiB"
    assert demand.model_states(out_of_memory(tmp_path, paper("zero3", 64))).status == "ruled_out"


def with_peak(situation: Situation, activations: int, rest: int) -> Situation:
    curve = Curve(
        1, 0, peak_bytes=activations + rest, peak_us=2.0, peak_step=5, peak_phase="forward", peak_region="mlp"
    )
    curve.at_peak = [Allocation(activations, 1.0, 5, "forward", "mlp"), Allocation(rest, 1.0, 5, "step", "step")]
    situation.ranks[3].curve = curve
    return situation


def test_activations_are_a_cause_only_when_memory_ran_out(tmp_path):
    full = with_peak(out_of_memory(tmp_path, paper("zero3", 64)), 30 * GIB, 6 * GIB)
    found = demand.activations(full)
    assert (found.status, found.ranks, found.step) == ("confirmed", (3,), 5)
    assert "mlp" in found.summary
    assert found.cost.value == 30 * GIB
    assert demand.activations(with_peak(full, 6 * GIB, 30 * GIB)).status == "ruled_out"
    full.ran_out = []
    assert demand.activations(with_peak(full, 30 * GIB, 6 * GIB)).status == "ruled_out"
