"""DeepSpeed's states: those of Rajbhandari et al. 2020, table 1, with the library's float32 copies."""

import pytest

from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.plan.formulas.closed_form import closed_form

RANKS = 4


@pytest.mark.parametrize(
    ("stage", "precision", "parameters", "states"),
    # Of each parameter on 4 ranks: compute type whole or 1/4; float32 copy and two moments of 1/4.
    [(1, "fp32", 4, 3), (2, "fp32", 4, 3), (3, "fp32", 1, 3), (2, "bf16", 2, 3), (3, "bf16", 0.5, 3)],
)
def test_bytes_per_parameter(stage: int, precision: str, parameters: float, states: float) -> None:
    overrides = ["model=gpt2", f"strategy=deepspeed_zero{stage}", f"precision={precision}", "train.micro_batch_size=2"]
    prediction = closed_form(compose(overrides).config, RANKS)
    at_peak = prediction.memory.at_peak_bytes
    assert at_peak["parameters"] == pytest.approx(parameters * prediction.parameters, rel=1e-3)
    assert at_peak["optimizer states"] == pytest.approx(states * prediction.parameters, rel=1e-3)
    assert ("gathered parameters" in at_peak) == (stage == 3)
    assert any("exact except for padding" in note for note in prediction.notes)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_bucket_is_no_larger_than_the_gradients(stage: int) -> None:
    overrides = ["model=gpt2", f"strategy=deepspeed_zero{stage}", "train.micro_batch_size=2"]
    prediction = closed_form(compose(overrides).config, RANKS)
    assert prediction.memory.at_peak_bytes["buckets"] <= 2 * 4 * prediction.parameters, (
        "the bucket, and the copy that is sent"
    )


def test_offloaded_states_are_on_the_host_of_a_gpu() -> None:
    overrides = ["model=gpt2", "strategy=deepspeed_zero2", "strategy.offload=optimizer", "launcher.device=cuda"]
    prediction = closed_form(compose([*overrides, "train.micro_batch_size=2"]).config, RANKS)
    assert prediction.memory.at_peak_bytes.get("optimizer states", 0) == 0
    assert prediction.memory.host_bytes == pytest.approx(3 * prediction.parameters, rel=1e-3)


def test_it_cannot_be_simulated() -> None:
    with pytest.raises(DtkError, match=r"deepspeed_zero3 cannot be simulated.*strategy=fsdp, or dtk plan"):
        compose(["strategy=deepspeed_zero3"]).config.strategy.in_memory()
