"""Checkpoints that cannot be written or are not there: the run says so, once, and its folder does."""

import resource
import subprocess
import sys

import pytest

from tests.cli.command import TINY, environment, metrics, only_run, run, status

SHORT = [*TINY, "train.log_every=1", "train.evaluate_every=-1"]


def quota() -> None:
    """No file may grow beyond 1 MB, as on a full disk; the small records still fit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.timeout(100)
def test_a_run_that_keeps_no_checkpoint_fails_and_says_so_once(tmp_path):
    large = ["model.width=128", "train.steps=6", "checkpoint.every=2", "launcher.nproc=2", "strategy=ddp"]
    process = subprocess.run(
        [sys.executable, "-m", "dtk.run", f"runs_folder={tmp_path}", *SHORT, *large],
        env=environment(),
        preexec_fn=quota,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = process.stdout + process.stderr
    assert process.returncode == 1, said
    assert said.count("checkpoint failed: file too large; training continues") == 1
    lines = process.stdout.splitlines()
    assert "FAILED after step 6: the last checkpoint failed: file too large; the run has no checkpoint" in lines[-3:]
    assert said.count("the run has no checkpoint") == 1
    record = status(only_run(tmp_path))
    assert (record["state"], record["exit_code"], record["step"]) == ("failed", 1, 6)
    assert record["reason"] == "the last checkpoint failed: file too large; the run has no checkpoint"
    assert not list((only_run(tmp_path) / "checkpoints").iterdir())


@pytest.mark.timeout(150)
def test_without_a_checkpoint_a_run_starts_again_and_its_records_are_told_apart(tmp_path):
    first = run(tmp_path, *SHORT, "train.steps=2", "checkpoint=off", "strategy=single")
    assert first.returncode == 0, first.stdout + first.stderr
    folder = only_run(tmp_path)
    assert "no checkpoint" not in first.stdout
    again = run(tmp_path, f"resume={folder}", "train.steps=3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"no checkpoint in {folder.name}: it starts again from step 1" in again.stdout
    assert [(r["attempt"], r["step"]) for r in metrics(folder)] == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
