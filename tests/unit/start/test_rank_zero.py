"""Rank 0 of torchrun or Slurm decides for all: the configuration, the folder, device and back-end."""

import argparse
import json

import pytest

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.errors import DtkError
from dtk.run import main
from dtk.start.rank_zero import _decide
from tests.cli.command import TINY
from tests.unit.launch.conftest import SMALL, as_rank


def typed(*overrides: str) -> argparse.Namespace:
    return argparse.Namespace(overrides=[*SMALL, *overrides], config_dir=None, rerun=None, trust=False)


def test_rank_0_composes_makes_the_folder_and_says_what_runs(tmp_path, monkeypatch, capsys):
    as_rank(monkeypatch, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    shared = _decide(typed(f"runs_folder={tmp_path}", "train.global_batch_size=8"), "torchrun")
    (folder,) = tmp_path.iterdir()
    assert shared.run_folder == str(folder) and "-ddp-w2-" in folder.name
    assert (shared.device, shared.backend, shared.attempt) == ("cpu", "gloo", 0)
    plain = shared.config
    assert (plain["train"]["micro_batch_size"], plain["train"]["steps"]) == (4, 2), "settled for two ranks"
    paths = RunPaths(folder)
    assert read_status(paths.status).state == "running"
    assert json.loads(paths.manifest.read_text())["launcher"] == "torchrun"
    assert "torchrun detected, 1 node" in capsys.readouterr().out


def test_a_job_that_would_hang_is_not_started(tmp_path, monkeypatch, capsys):
    as_rank(monkeypatch, 1)
    monkeypatch.setattr("dtk.start.rank_zero.preflight_point", lambda *given: "HUNG: the report\n")
    with pytest.raises(DtkError, match="this job would hang"):
        _decide(typed(f"runs_folder={tmp_path}"), "torchrun")
    assert capsys.readouterr().out == "HUNG: the report\n" and not list(tmp_path.iterdir())


def test_a_rank_of_a_cluster_does_not_submit(monkeypatch, capsys):
    as_rank(monkeypatch, 1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    from tests.dist.ranks import free_port

    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert main([*TINY, "launcher=slurm"]) == 2
    assert "submits a job" in capsys.readouterr().err
