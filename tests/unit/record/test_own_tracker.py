"""A tracker of one's own: what it is given, that it must be allowed, and the example of the guide."""

import dataclasses
import json
from pathlib import Path

import pytest

from dtk.config.instantiate import check_targets
from dtk.config.schema import CustomTracker
from dtk.errors import DtkError
from dtk.record import trackers
from dtk.record.own_tracker import OwnTracker
from dtk.record.trackers import Tracker

OWN = """
import json
from pathlib import Path
from dtk.record.own_tracker import OwnTracker
class Mine(OwnTracker):
    def __init__(self, uri: str) -> None:
        self.lines, self.uri = [], uri
    def begin(self, run_id, folder, config):
        self.lines.append(["begin", run_id, config["model"]["name"]])
    def log(self, step, figures, time_s):
        self.lines.append(["log", step, figures["loss"], time_s])
    def summary(self, figures):
        self.lines.append(["summary", figures])
    def finish(self, exit_code):
        Path(self.uri).write_text(json.dumps([*self.lines, ["finish", exit_code]]))
"""


@pytest.mark.timeout(60)
def test_a_tracker_of_ones_own_gets_everything(paths, make_config, tmp_path, monkeypatch):
    (tmp_path / "my_trackers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    paths.root.mkdir()
    section = CustomTracker(_target_="my_trackers.Mine", arguments={"uri": str(tmp_path / "out.json")})
    tracker = Tracker(dataclasses.replace(make_config(tracker=section), allow_targets=["my_trackers.*"]), paths.root)
    tracker.start()
    tracker.log({"step": 3, "loss": 0.5, "time_s": 7.0, "mfu_reason": "cpu"})
    tracker.summary({"loss": 0.5})
    tracker.close(0, timeout_s=40)
    assert json.loads((tmp_path / "out.json").read_text()) == [
        ["begin", paths.root.name, "gpt2_tiny"],
        ["log", 3, 0.5, 7.0],
        ["summary", {"loss": 0.5}],
        ["finish", 0],
    ]


@pytest.mark.timeout(60)
def test_a_tracker_that_is_not_allowed_is_not_imported(paths, make_config, tmp_path, monkeypatch, capfd):
    (tmp_path / "bad_trackers.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + OWN)
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config(tracker=CustomTracker(_target_="bad_trackers.Mine", arguments={"uri": "x"}))
    with pytest.raises(DtkError, match=r"_target_=bad_trackers\.Mine is not allowed"):
        check_targets(config)
    paths.root.mkdir()
    tracker = Tracker(config, paths.root)
    tracker.start()
    tracker.close(0, timeout_s=40)
    assert tracker._process.returncode == 1 and not (tmp_path / "ran").exists()
    assert capfd.readouterr().err.count("is not allowed") == 1


@pytest.mark.timeout(120)
def test_the_example_of_the_guide_writes_to_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    text = (Path(trackers.__file__).parents[2] / "docs" / "guides" / "own_tracker.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    for step in (1, 2):  # A run, and the same one resumed.
        tracker = names["MLflow"](uri=f"sqlite:///{tmp_path}/mlflow.db")
        tracker.begin("20260101-run", tmp_path, {"seed": 1, "model": {"name": "gpt2"}})
        tracker.log(step, {"loss": 1.0 / step}, 1767225600.0 + step)
        tracker.table("parity", ("a", "b"), [[1, 2]])
        tracker.finish(0)
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.params == {"seed": "1", "model.name": "gpt2"} and run.info.status == "FINISHED"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value, metric.timestamp) for metric in history] == [
        (1, 1.0, 1767225601000),
        (2, 0.5, 1767225602000),
    ]


def test_a_tracker_may_leave_out_what_it_does_not_want(tmp_path):
    class Losses(OwnTracker):
        def __init__(self):
            self.seen = []

        def log(self, step, figures, time_s):
            self.seen.append(figures["loss"])

    tracker = Losses()
    tracker.begin("run", tmp_path, {})
    tracker.log(1, {"loss": 0.5}, 1.0)
    tracker.summary({"loss": 0.5})
    tracker.table("parity", ("a",), [[1]])
    tracker.artifact("diagnosis", "report", {})
    tracker.alert("run failed", "why")
    tracker.finish(0)
    assert tracker.seen == [0.5]
