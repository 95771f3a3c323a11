"""W&B's own commands against a stand-in of its server on loopback: sweeps arrive, runs arrive, once each."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths
from dtk.config.compose import compose
from dtk.config.folders import SWEEPS, conf_folder
from dtk.record.trackers import Tracker, offline_logs
from tests.cli.command import ROOT, TINY, environment, status
from tests.cli.wandb_server import ENTITY, StandIn
from tests.unit.sweep.files import GRID, write

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")


def wandb(server: StandIn, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return call(server, folder, "-m", "wandb", *arguments)


def call(server: StandIn, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**server.environment(str(folder)), **path),
        capture_output=True,
        text=True,
        timeout=800,
    )


@pytest.mark.timeout(300)
def test_an_offline_run_is_sent_later(tmp_path, monkeypatch):
    """By the real `wandb sync`: history, configuration and final figures arrive under the run's own id."""
    monkeypatch.setenv("HOME", str(tmp_path))
    config = compose([*TINY, "tracker=wandb", "tracker.mode=offline", "tracker.project=mine"]).config
    run = tmp_path / "20260101-000000-gpt-ddp-w2-0000"
    run.mkdir()
    tracker = Tracker(config, run)
    tracker.start()
    for step in (1, 2):
        tracker.log({"step": step, "loss": 1.0 / step, "mfu_reason": "none"})
    tracker.summary({"tokens_per_s": 1234.0})
    tracker.close(0, 60)
    with StandIn() as server:
        done = wandb(server, tmp_path, "sync", *map(str, offline_logs(run)))
        assert done.returncode == 0, done.stdout + done.stderr
        assert [(record["_step"], record["loss"]) for record in server.history[run.name]] == [(1, 1.0), (2, 0.5)]
        assert server.summary[run.name]["tokens_per_s"] == 1234.0
        assert server.config[run.name]["model"]["value"]["layers"] == 2


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_resumed_run_goes_on_in_the_same_run_of_wandb(tmp_path, monkeypatch):
    config = compose([*TINY, "tracker=wandb", "tracker.mode=online"]).config
    run = tmp_path / "20260101-000000-gpt-ddp-w2-0000"
    run.mkdir()
    with StandIn() as server:
        for name, value in server.environment(str(tmp_path)).items():
            monkeypatch.setenv(name, value)
        for steps in ((1, 2), (3, 4)):
            tracker = Tracker(config, run)
            tracker.start()
            for step in steps:
                tracker.log({"step": step, "loss": 1.0 / step})
            tracker.close(0, 60)
            assert tracker._process.returncode == 0
        assert [row["_step"] for row in server.history[run.name]] == [1, 2, 3, 4] and list(server.history) == [run.name]


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_server_that_refuses_is_one_line(tmp_path, monkeypatch, capsys):
    if find_spec("sweeps") is None:
        pytest.skip("the extra sweeps is not installed")
    from dtk.commands.main import main

    with StandIn() as server:
        for name, value in server.environment(str(tmp_path)).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(server, "answer", lambda *_: {"upsertSweep": None})
        assert main(["sweep", str(write(tmp_path, GRID)), "--wandb"]) == 2
    out, error = capsys.readouterr()
    assert "checked 2 points" in out
    lines = [line for line in error.splitlines() if not line.startswith("wandb: ")]  # What its library says of a login.
    assert len(lines) == 1 and f"{server.url} did not accept the sweep" in lines[0]


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_dtks_own_files_are_taken_by_the_real_command(tmp_path):
    files = sorted((conf_folder() / SWEEPS).glob("*.yaml"))
    with StandIn() as server:
        for path in files:
            done = wandb(server, tmp_path, "sweep", "--project", "mine", str(path))
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"wandb agent {ENTITY}/mine/sweep" in done.stderr
    for path, taken in zip(files, server.sweeps):
        written = yaml.safe_load(path.read_text())
        assert {key: taken[key] for key in ("method", "command", "metric")} == {
            key: written[key] for key in ("method", "command", "metric")
        }
        assert set(taken["parameters"]) == set(written["parameters"])


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["dtk sweep --wandb", "wandb sweep, wandb agent"])
def test_two_points_run_with_their_overrides_and_only_rank_0_reports(by, tmp_path):
    """Two ranks each; history and configuration arrive once, from one process."""
    if find_spec("sweeps") is None and by.startswith("dtk"):
        pytest.skip("the extra sweeps is not installed")
    runs = tmp_path / "runs"
    points = [{"strategy": name, "train.steps": 3, "optimizer.lr": 0.002} for name in ("ddp", "fsdp")]
    content = {**GRID, "parameters": {**GRID["parameters"], "optimizer.lr": {"value": 0.002}}}
    content["command"] = [*GRID["command"], "checkpoint=off", f"runs_folder={runs}"]
    path = write(tmp_path, content)
    with StandIn(points) as server:
        if by.startswith("dtk"):
            done = call(server, tmp_path, "-m", "dtk", "sweep", str(path), "--wandb", "seed=7")
        else:
            assert wandb(server, tmp_path, "sweep", "--project", "dtk", str(path)).returncode == 0
            done = wandb(server, tmp_path, "agent", f"{ENTITY}/dtk/sweep1")
        assert done.returncode == 0, done.stdout + done.stderr
        paths = sorted(path for path in runs.iterdir() if RunPaths(path).status.exists())
        for index, (run, point) in enumerate(zip(paths, points)):
            name = f"point{index}"
            assert status(run)["state"] == "finished"
            stored = yaml.safe_load(RunPaths(run).config.read_text())
            assert (stored["strategy"]["name"], stored["optimizer"]["lr"]) == (point["strategy"], 0.002)
            assert stored["seed"] == (7 if by.startswith("dtk") else 1234)
            assert [record["_step"] for record in server.history[name]] == [1, 2, 3], "from one rank, once"
            assert all("loss" in record and "tokens_per_s" in record for record in server.history[name])
            assert server.config[name]["strategy"]["value"] == point["strategy"]
            assert server.config[name]["model"]["value"]["layers"] == 2
            assert len(list(run.glob("wandb/run-*"))) == 1, "one process talks to the server"
        assert len(paths) == 2 and set(server.history) == {"point0", "point1"}
    assert ROOT not in tmp_path.parents
