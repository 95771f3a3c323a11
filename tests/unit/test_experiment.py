"""dtk as a library: what is returned and what is raised. Runs: tests/cli/test_experiment.py."""

import json
import sys
from pathlib import Path

import pytest
import torch

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.runs.find import read_details
from dtk import experiment
from dtk.errors import DtkError


def result(folder: Path, lines: str) -> experiment.RunResult:
    (folder / "status.json").write_text(json.dumps({"schema_version": 1, "state": "finished"}))
    (folder / "summary.json").write_text(json.dumps({"figures": {"loss": 2.5}}))
    (folder / "metrics.jsonl").write_text(lines)
    return experiment.RunResult(folder, 0, read_details(folder))


def test_a_result_reads_what_the_run_left(tmp_path: Path) -> None:
    run_result = result(tmp_path, '{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.5}\n{"step": 3, "lo')
    assert run_result.state == "finished"
    assert [row["loss"] for row in run_result.metrics()] == [3.0, 2.5], "a line that was torn says nothing"
    (tmp_path / "metrics.jsonl").unlink()
    assert [*run_result.metrics()] == []


def test_compose_returns_types_and_says_what_to_type_instead() -> None:
    composed = experiment.compose("strategy=ddp", "model=gpt2_tiny", "train.steps=7")
    assert (composed.config.strategy.name, composed.config.train.steps) == ("ddp", 7)
    assert composed.plain["train"]["steps"] == 7
    with pytest.raises(DtkError, match="did you mean"):
        experiment.compose("train.stepz=7")
    with pytest.raises(DtkError, match="an override is a string, but this is a list"):
        experiment.compose(["train.steps=7"])  # type: ignore[arg-type]


def test_a_plan_leaves_nothing_behind_in_the_process_of_the_script() -> None:
    hook = sys.excepthook
    experiment.plan("strategy=fsdp", "model=gpt2_tiny", "launcher.world_size=2")
    assert sys.excepthook is hook and not torch.distributed.is_initialized()


def test_a_job_that_is_submitted_elsewhere_is_not_waited_for() -> None:
    with pytest.raises(DtkError, match="this launcher submits it") as error:
        experiment.run("launcher=slurm", "launcher.nodes=2", "model=gpt2_tiny", "train.global_batch_size=64")
    assert "use dtk run" in str(error.value)


def test_a_path_without_evidence_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticsError):
        experiment.diagnose(tmp_path / "absent")
