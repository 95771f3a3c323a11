"""The two engines against each other: what the peak consists of, each region's, and what is told of a difference."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.placement import Placement
from dtk.plan.engines import Difference, differences, keep_plan, planned
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
HERE = Placement(8, 2, "cpu", "gloo", 1, 0, ())
TINY = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64", "launcher.world_size=2"]


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


def test_the_plan_is_written_as_the_closed_form_says(tmp_path: Path) -> None:
    job = planned_job([*TINY, "strategy=fsdp"])
    paths = RunPaths(tmp_path)
    keep_plan(paths, job, HERE)
    stored = json.loads(paths.plan.read_text())
    assert stored == json.loads(json.dumps(planned(job, HERE)))
    assert (stored["engine"], stored["strategy"], stored["world_size"]) == ("closed_form", "fsdp", 2)


def test_the_kernels_are_those_of_the_device() -> None:
    job = planned_job([*TINY, "strategy=ddp"])
    on_cpu, on_cuda = (planned(job, replace(HERE, device=device)) for device in ("cpu", "cuda"))
    assert on_cpu is not None and on_cuda is not None
    assert on_cpu["notes"][0].startswith("CPU kernels.")
    assert on_cuda["notes"][0].startswith("CUDA kernels: ")
    assert on_cuda["memory"] != on_cpu["memory"]


def test_a_planted_setting_is_not_planned() -> None:
    healthy = planned(planned_job([*TINY, "strategy=fsdp"]), HERE)
    faulty = planned_job([*TINY, "strategy=fsdp", "fault=no_reshard"])
    assert faulty.config.strategy.reshard_after_forward is False
    assert planned(faulty, HERE) == healthy
    chosen = planned(planned_job([*TINY, "strategy=fsdp", "strategy.blocks_per_unit=2"]), HERE)
    both = planned_job([*TINY, "strategy=fsdp", "strategy.blocks_per_unit=2", "fault=no_reshard"])
    assert planned(both, HERE) == chosen != healthy, "what the user typed stays"


def test_a_job_that_no_formula_knows_has_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["model=custom", "model._target_=tests.dist.own_models.Own", "allow_targets=[tests.dist.own_models.Own]"]
    job = planned_job([*own, "data=synthetic", "strategy=fsdp"])
    assert planned(job, HERE) is None
    keep_plan(RunPaths(tmp_path), job, HERE)
    assert not RunPaths(tmp_path).plan.exists() and not capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    keep_plan(RunPaths(tmp_path / "file"), planned_job([*TINY, "strategy=ddp"]), HERE)
    error = capsys.readouterr().err
    assert error.startswith("dtk: no plan was stored: ") and error.endswith("; the run continues\n")
    assert error.count("\n") == 1
