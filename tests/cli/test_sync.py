"""`dtk sync`: what a run recorded reaches a tracker afterwards, under its own id, once for each step."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.commands.main import main
from dtk.sweep.folder import Point, create
from tests.cli.wandb_server import StandIn
from tests.unit.compare.folders import make_run

NAMES = ("ddp", "fsdp")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Six steps; the first attempt ended after step 4, the second continued from step 2."""
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


@pytest.mark.timeout(200)
@pytest.mark.skipif(find_spec("wandb_workspaces") is None, reason="the extra wandb-reports is not installed")
def test_wandb_gets_the_runs_of_a_sweep_and_a_report_of_them_side_by_side(run, monkeypatch, tmp_path, capsys):
    """The run that W&B has since it ran is not sent again."""
    runs = tmp_path / "runs"
    online = RunPaths(make_run(runs, "20260101-000001-gpt-fsdp-w2-0001"))
    (online.root / "wandb" / "run-1").mkdir(parents=True)
    points = [
        Point(i, f"strategy={name}", [], {"strategy": {"name": name}}, {}, "", None) for i, name in enumerate(NAMES)
    ]
    sweep = create(runs, "multirun", "strategies", {}, 2, points)
    for point, paths in enumerate((run, online)):
        sweep.opened(trial := sweep.begin(point, 0), paths.root)
        sweep.end(trial, "finished", 0, "")
    sweep.close()
    with StandIn() as server:
        for name, value in server.environment(str(tmp_path)).items():
            monkeypatch.setenv(name, value)
        assert main(["sync", sweep.about.id, "--tracker", "wandb", "--project", "mine"]) == 0
    out = capsys.readouterr().out
    assert f"{run.root.name}: 6 records uploaded to wandb" in out and f"{online.root.name}: wandb already has it" in out
    history = server.history[run.root.name]
    assert [(row["_step"], row["loss"]) for row in history] == [(1, 1), (2, 2), (3, 30), (4, 40), (5, 50), (6, 60)]
    assert [row["_timestamp"] for row in history] == [1e9 + step for step in range(1, 7)]
    assert server.config[run.root.name]["train"]["value"]["global_batch_size"] > 0
    (view,) = server.views
    assert (view["projectName"], view["displayName"]) == ("mine", f"{sweep.about.id}: side by side")
    (grid,) = (block["metadata"] for block in view["spec"]["blocks"] if "metadata" in block)
    (shown,) = grid["runSets"]
    (chosen,) = shown["filters"]["filters"]
    assert chosen["value"] == [run.root.name, online.root.name] and chosen["key"]["name"] == "displayName"
    assert [key["name"] for key in shown["grouping"]] == ["strategy.value.name"]
    panels = grid["panelBankSectionConfig"]["panels"]
    assert [panel["viewType"] for panel in panels] == 3 * ["Run History Line Plot"] + 4 * ["Bar Chart"] + [
        "Run Comparer"
    ]
    assert "Parity" in json.dumps(view["spec"]["blocks"]), "what dtk compare says of them"


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
    assert "metrics.jsonl is a link out of the folder" in refused("last", "--tracker", "tensorboard")
    run.metrics.unlink()
    Path(run.config).write_text("a: &a [*a]")
    assert "config.yaml" in refused("last", "--tracker", "tensorboard")


def test_a_tracker_that_takes_nothing_is_ended(run, capsys, monkeypatch):
    """Real process, no server: `TensorBoard` stands still at its import."""
    (run.root.parent / "tensorboard.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr("dtk.record.trackers.sys.path", [str(run.root.parent), *sys.path])
    assert main(["sync", "last", "--tracker", "tensorboard", "--timeout-s", "3"]) == 2
    assert "tensorboard did not accept the run" in (error := capsys.readouterr().err) and "ended after 3 s" in error
