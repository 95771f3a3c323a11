"""`dtk sync`: what a run recorded reaches a tracker afterwards, under its own id, once for each step."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.commands.main import main
from tests.cli.wandb_server import StandIn
from tests.unit.compare.folders import make_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Six steps; the first attempt ended after step 4, the second went on from step 2."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    paths = RunPaths(make_run(tmp_path / "runs", "20260101-000000-gpt-ddp-w2-0000"))
    rows = [{"attempt": 0, "step": step, "loss": float(step), "time_s": 1e9 + step} for step in (1, 2, 3, 4)]
    rows += [{"attempt": 1, "step": step, "loss": 10.0 * step, "time_s": 1e9 + step} for step in (3, 4, 5, 6)]
    rows[-1]["<script>"] = "no number"
    paths.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 7, "lo')
    paths.root.chmod(0o755)
    return paths


@pytest.mark.timeout(120)
@pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")
def test_wandb_gets_the_run_under_its_own_id(run, monkeypatch, tmp_path, capsys):
    with StandIn() as server:
        for name, value in server.environment(str(tmp_path)).items():
            monkeypatch.setenv(name, value)
        assert main(["sync", "last", "--tracker", "wandb", "--project", "mine"]) == 0
    assert "6 records handed to wandb" in capsys.readouterr().out
    history = server.history[run.root.name]
    assert [(row["_step"], row["loss"]) for row in history] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
        (4, 40.0),
        (5, 50.0),
        (6, 60.0),
    ]
    assert [row["_timestamp"] for row in history] == [1e9 + step for step in range(1, 7)]
    assert server.config[run.root.name]["train"]["value"]["global_batch_size"] > 0


@pytest.mark.timeout(60)
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_tensorboard_gets_the_time_of_each_record(run, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["sync", "last", "--tracker", "tensorboard"]) == 0
    events = EventAccumulator(str(run.root / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")][2:] == [(3, 30), (4, 40), (5, 50), (6, 60)]
    assert events.Scalars("loss")[0].wall_time == 1e9 + 1


def test_what_cannot_be_sent_is_one_line(run, capsys):
    def refused(*words: str) -> str:
        assert main(["sync", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        return error

    assert "name one: --tracker wandb" in refused("last")
    run.root.chmod(0o777)
    assert "everybody can write to the folder" in refused("last", "--tracker", "tensorboard")
    run.root.chmod(0o755)
    run.metrics.unlink()
    run.metrics.symlink_to("/etc/passwd")
    assert main(["sync", "last", "--tracker", "tensorboard"]) in (0, 2)
    Path(run.config).write_text("a: &a [*a]")
    assert "config.yaml" in refused("last", "--tracker", "tensorboard")
