"""From overrides and a number of ranks to the job that is planned: the rules of a run, without this machine."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.checks import check_ranks
from dtk.config.placement import Placement
from dtk.errors import DtkError
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.job import Difference, differences, keep_plan, planned, planned_job, ranks_of, settled_job
from dtk.plan.simulated.engine import simulate

TINY = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64"]


def test_the_batch_is_divided_over_the_ranks_of_all_nodes() -> None:
    job = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=8", "train.global_batch_size=64"])
    assert (ranks_of(job.config), job.config.train.micro_batch_size) == (8, 4)
    assert job.plain["launcher"]["world_size"] == 8
    assert job.plain["train"]["micro_batch_size"] == 4


def test_a_job_for_other_machines_says_its_ranks_itself() -> None:
    slurm = [*TINY, "launcher=slurm", "launcher.nodes=3"]
    assert ranks_of(planned_job([*slurm, "launcher.gpus_per_node=8"]).config) == 24
    assert ranks_of(planned_job([*slurm, "launcher.nproc=2"]).config) == 6
    with pytest.raises(DtkError, match=r"more than launcher\.gpus_per_node=8"):
        planned_job([*slurm, "launcher.gpus_per_node=8", "launcher.nproc=9"])


def test_ranks_are_those_of_world_size_then_nproc_then_the_machine() -> None:
    assert ranks_of(planned_job([*TINY, "launcher.nproc=4"]).config) == 4
    assert ranks_of(planned_job([*TINY, "launcher.nproc=4", "launcher.world_size=8"]).config) == 8
    assert ranks_of(planned_job([*TINY, "strategy=ddp"], devices=8).config) == 8
    assert ranks_of(planned_job([*TINY, "strategy=single"], devices=8).config) == 1
    assert ranks_of(planned_job([*TINY, "launcher.device=cpu"]).config) == 2
    assert ranks_of(planned_job([*TINY, "launcher.world_size=8"], world_size=4).config) == 4


def test_the_default_batch_grows_with_the_ranks_and_says_so() -> None:
    job = planned_job([*TINY, "launcher.world_size=64"])
    assert job.config.train.global_batch_size == 64
    assert job.overrides[-1] == "train.global_batch_size=64"
    accumulated = planned_job([*TINY, "launcher.world_size=64", "train.micro_batch_size=2"])
    assert accumulated.config.train.global_batch_size == 128
    assert planned_job([*TINY, "launcher.world_size=4"]).overrides == [*TINY, "launcher.world_size=4"]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["launcher.world_size=6", "strategy=hsdp", "strategy.dp_replicate=4"], "3 x 2, 2 x 3, 1 x 6"),
        (["launcher.world_size=64", "train.global_batch_size=100"], "cannot be split over 64 ranks"),
        (["launcher.world_size=64", "strategy=single"], "use launcher.world_size=1, or strategy=ddp"),
        (["launcher.world_size=0"], "launcher.world_size=0 is out of range: it must be 1 to 1000000"),
        (["launcher.nproc=-3"], "launcher.nproc=-3 is out of range"),
        (["launcher.world_size=abc"], "launcher.world_size"),
        (["launcher.wrld_size=8"], "did you mean launcher.world_size"),
        (["launcher.world_size=8", "launcher.backend=nccl", "launcher.device=cpu"], "needs a GPU"),
    ],
)
def test_what_no_run_could_be_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(DtkError) as raised:
        planned_job([*TINY, *overrides])
    assert text in str(raised.value)


def test_nothing_of_this_machine_is_asked() -> None:
    """Neither CUDA devices nor a free port nor data: the job is for other machines."""
    texts = ["launcher.device=cuda", "launcher.backend=nccl", "launcher.master_port=1"]
    job = planned_job([*TINY, *texts, "strategy=fsdp", "data=tokens", "data.path=/nowhere", "launcher.world_size=16"])
    assert ranks_of(job.config) == 16


def test_a_job_can_be_settled_again_for_other_ranks() -> None:
    job = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=4", "train.global_batch_size=16"])
    assert ranks_of(settled_job(job, 2).config) == 2
    with pytest.raises(DtkError, match="cannot be split"):
        settled_job(job, 3)


def test_a_run_with_other_ranks_than_planned_is_refused() -> None:
    config = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=4"]).config
    check_ranks(config, 4, "cpu")
    with pytest.raises(DtkError) as raised:
        check_ranks(config, 2, "cpu")
    assert "launcher.world_size=4, but this run has 2 ranks" in str(raised.value)
    assert "launcher.nproc=4" in str(raised.value)


def test_a_degree_of_minus_one_is_a_number_in_the_job() -> None:
    job = planned_job(["model=gpt2_tiny", "strategy=ddp", "parallel.tp=-1", "parallel.pp=2"], None, 8)
    assert job.config.parallel.tp == job.plain["parallel"]["tp"] == 4


pytestmark = pytest.mark.filterwarnings("ignore")
RANKS = 8
MODELS = {
    "tied": ["model=gpt2_tiny", "model.vocab_size=2000", "data=synthetic", "data.vocab_size=2000"],
    "llama": ["model=llama_tiny", "data=synthetic", "data.vocab_size=512"],
    "encoder": ["model=bert_tiny", "data=classification"],
}
SHARDED = ("zero2", "fsdp", "hsdp")
HERE = Placement(8, 2, "cpu", "gloo", 1, 0, ())
TWO_RANKS = [*TINY, "launcher.world_size=2"]


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
    job = planned_job([*TWO_RANKS, "strategy=fsdp"])
    paths = RunPaths(tmp_path)
    keep_plan(paths, job, HERE)
    stored = json.loads(paths.plan.read_text())
    assert stored == json.loads(json.dumps(planned(job, HERE)))
    assert (stored["engine"], stored["strategy"], stored["world_size"]) == ("closed_form", "fsdp", 2)


def test_the_kernels_are_those_of_the_device() -> None:
    job = planned_job([*TWO_RANKS, "strategy=ddp"])
    on_cpu, on_cuda = (planned(job, replace(HERE, device=device)) for device in ("cpu", "cuda"))
    assert on_cpu is not None and on_cuda is not None
    assert on_cpu["notes"][0].startswith("CPU kernels.")
    assert on_cuda["notes"][0].startswith("CUDA kernels: ")
    assert on_cuda["memory"] != on_cpu["memory"]


def test_a_planted_setting_is_not_planned() -> None:
    healthy = planned(planned_job([*TWO_RANKS, "strategy=fsdp"]), HERE)
    faulty = planned_job([*TWO_RANKS, "strategy=fsdp", "fault=no_reshard"])
    assert faulty.config.strategy.reshard_after_forward is False
    assert planned(faulty, HERE) == healthy
    chosen = planned(planned_job([*TWO_RANKS, "strategy=fsdp", "strategy.blocks_per_unit=2"]), HERE)
    both = planned_job([*TWO_RANKS, "strategy=fsdp", "strategy.blocks_per_unit=2", "fault=no_reshard"])
    assert planned(both, HERE) == chosen != healthy, "what the user typed stays"


def test_a_job_that_no_formula_knows_has_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["model=custom", "model._target_=tests.dist.own_models.Own", "allow_targets=[tests.dist.own_models.Own]"]
    job = planned_job([*own, "data=synthetic", "strategy=fsdp"])
    assert planned(job, HERE) is None
    keep_plan(RunPaths(tmp_path), job, HERE)
    assert not RunPaths(tmp_path).plan.exists() and not capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    keep_plan(RunPaths(tmp_path / "file"), planned_job([*TWO_RANKS, "strategy=ddp"]), HERE)
    error = capsys.readouterr().err
    assert error.startswith("dtk: no plan was stored: ") and error.endswith("; the run continues\n")
    assert error.count("\n") == 1
