"""The two engines against each other: what the peak consists of, each region's, and what is told of a difference."""

import dataclasses

import pytest

from dtk.plan.engines import Difference, differences
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate

pytestmark = pytest.mark.filterwarnings("ignore")
RANKS = 8
MODELS = {
    "tied": ["model=gpt2_tiny", "model.vocab_size=2000", "data=synthetic", "data.vocab_size=2000"],
    "llama": ["model=llama_tiny", "data=synthetic", "data.vocab_size=512"],
    "encoder": ["model=bert_tiny", "data=classification"],
}
SHARDED = ("zero2", "fsdp", "hsdp")


def predictions(model, strategy, *overrides):
    ranks = 1 if strategy == "single" else RANKS
    replicas = ["strategy.dp_replicate=2"] if strategy == "hsdp" else []
    common = ["model.layers=2", "data.sequence_length=32", "launcher.device=cpu", f"strategy={strategy}", *replicas]
    config = planned_job([*MODELS[model], *common, *overrides], None, ranks).config
    return closed_form(config, ranks), simulate(config, ranks)


def agree(ours, theirs):
    """Within 1% of the peak in every category, and of itself in every region."""
    assert differences(ours, theirs) == ()
    peak = theirs.memory.peak_bytes
    at_peak_bytes, other = ours.memory.at_peak_bytes, theirs.memory.at_peak_bytes
    for name in {**at_peak_bytes, **other}:
        assert at_peak_bytes.get(name, 0) == pytest.approx(other.get(name, 0), abs=0.01 * peak), name
    assert ours.memory.by_region_bytes == pytest.approx(theirs.memory.by_region_bytes, rel=0.01)


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero1", *SHARDED])
@pytest.mark.parametrize("model", MODELS)
def test_both_engines_say_the_same(model, strategy):
    agree(*predictions(model, strategy))


@pytest.mark.parametrize(
    ("model", "strategy"),
    [("tied", "fsdp"), ("tied", "zero1"), ("llama", "zero1"), ("encoder", "zero1")],
)
def test_both_engines_say_the_same_in_bfloat16(model, strategy):
    """Under autocast gradients come in 16 bits and are widened when the product is over."""
    agree(*predictions(model, strategy, "precision=bf16"))


def test_the_gradient_of_a_tied_embedding_is_one():
    """Whole, before it is added to that of the other use: 2000 x 128 float32, twice in the peak and the sum."""
    for prediction in predictions("tied", "zero1"):
        assert prediction.memory.at_peak_bytes["gradients"] >= 3 * 4 * 2000 * 128


def test_regions_are_compared_as_well():
    ours, _ = predictions("tied", "fsdp")
    high = ours.memory.by_region_bytes["forward"]
    for factor, result in ((0.96, ()), (0.93, (Difference("peak in forward", round(high * 0.93), high),))):
        lower = {**ours.memory.by_region_bytes, "forward": round(high * factor)}
        low = dataclasses.replace(ours, memory=dataclasses.replace(ours.memory, by_region_bytes=lower))
        assert differences(low, ours) == result
