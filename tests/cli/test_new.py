"""A project of `dtk new` works at once, and its test runs dtk as a library."""

from pathlib import Path

import pytest

from dtk import experiment
from dtk.commands.main import main
from tests.cli.command import ROOT, environment
from tests.warm_python import run_module


@pytest.mark.timeout(150)
def test_its_own_tests_pass(tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "lab")]) == 0
    readme = (tmp_path / "lab" / "README.md").read_text()
    (typed,) = (line.split("#")[0].split() for line in readme.splitlines() if line.startswith("python -m "))
    process = run_module(typed[2:], environment() | {"PYTHONPATH": str(ROOT)}, tmp_path / "lab", 120)
    assert process.returncode == 0 and "Ran 2 tests" in process.stderr, process.stdout + process.stderr


def test_the_library_composes_plans_and_names_what_is_wrong() -> None:
    job = ("strategy=fsdp", "model=gpt2_tiny", "train.steps=3")
    assert experiment.compose(*job).config.train.steps == 3
    report = experiment.plan(*job, "launcher.nproc=2", world_sizes=(2, 4))
    assert report.plan.memory.peak_bytes > 0 and len(report.scaling) == 2
    with pytest.raises(experiment.DtkError, match="stepz"):
        experiment.compose("train.stepz=3")
    with pytest.raises(experiment.DtkError, match="waits for the end"):
        experiment.run(*job, "launcher=slurm")


@pytest.mark.timeout(100)
def test_a_run_that_fails_is_raised_or_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = ("model=gpt2_tiny", "train.steps=3", "launcher.nproc=2", "fault=exception", "fault.step=2")
    result = experiment.run(*job, check=False)
    assert (result.exit_code, result.state, result.summary) == (1, "failed", {})
    assert experiment.diagnose(result.folder).root_causes[0].cause == "hang.rank_raised"
