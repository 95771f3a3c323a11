"""`plan.json` of a run: the plan of the healthy job; what goes wrong costs one line and never the run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.placement import Placement
from dtk.plan.job import planned_job
from dtk.plan.stored import keep_plan, planned

HERE = Placement(8, 2, "cpu", "gloo", 1, 0, ())
TINY = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64", "launcher.world_size=2"]


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
