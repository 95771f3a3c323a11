import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from diagnostics.contract.artifacts import CHECKPOINT_INFO, Status, write_json
from dtk.config.instantiate import check_targets
from dtk.config.schema import CustomTracker, NoTracker, TensorboardTracker, WandbTracker
from dtk.errors import DtkError
from dtk.record import tracker_process, trackers
from dtk.record.guard import flush_reports
from dtk.record.trackers import Tracker, check_tracker, offline_logs, offline_reason
from tests.unit.record import wandb_file


@pytest.fixture
def wandb_home(tmp_path, monkeypatch):
    """A user without a key, whose settings can not leak into the test."""
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("the extra wandb is not installed")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def stalling_server():
    """Accepts connections and never answers; yields its URL and the number of connections so far."""
    server = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def accept():
        while True:
            try:
                accepted.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", accepted
    server.close()
    for connection in accepted:
        connection.close()


def logs_of(folder):
    return list(folder.glob("wandb/offline-run-*/*.wandb"))


def track(tracker, records=20):
    """Seconds of the slowest call."""
    slowest_s = 0.0
    for step in range(records):
        began_s = time.perf_counter()
        tracker.log({"step": step, "loss": 1.0 / (step + 1), "mfu": None, "mfu_reason": "cpu"})
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    tracker.summary({"loss": 0.05})
    return slowest_s


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    check_tracker(NoTracker())
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    for config in (WandbTracker(), TensorboardTracker()):
        with pytest.raises(DtkError) as caught:
            check_tracker(config)
        assert f"pip install 'dtk-train[{config.name}]' (from a clone: pip install '.[{config.name}]')" in str(
            caught.value
        )


def test_the_folder_that_wandb_makes_is_not_taken_for_the_package(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(trackers.sys.modules, "tensorboard", raising=False)
    with pytest.raises(DtkError):
        check_tracker(TensorboardTracker())


def test_online_without_a_key_is_one_line_at_the_start(wandb_home, tmp_path, monkeypatch):
    for mode in ("auto", "offline"):
        check_tracker(WandbTracker(mode=mode))
    with pytest.raises(DtkError, match=r"tracker\.mode=online needs a key.*wandb login"):
        check_tracker(WandbTracker(mode="online"))
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    with pytest.raises(DtkError, match=r"for https://api\.wandb\.ai"):
        check_tracker(WandbTracker(mode="online"))
    # As `wandb login --host https://wandb.example.org` leaves it.
    (tmp_path / ".config" / "wandb").mkdir(parents=True)
    (tmp_path / ".config" / "wandb" / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    check_tracker(WandbTracker(mode="online"))


def test_why_wandb_stays_offline(wandb_home, monkeypatch):
    assert offline_reason(NoTracker()) is None
    assert offline_reason(WandbTracker()) == "no key in WANDB_API_KEY or the netrc file"
    assert offline_reason(WandbTracker(mode="offline")) == "tracker.mode=offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert offline_reason(WandbTracker()) is None
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert offline_reason(WandbTracker()) == "WANDB_MODE=offline"
    assert offline_reason(WandbTracker(mode="online")) is None


@pytest.mark.timeout(120)
def test_without_a_key_wandb_tracks_offline_in_the_run_folder(paths, make_config, wandb_home):
    paths.root.mkdir()
    chosen = WandbTracker(group="g", tags=["t"], notes="uses password=v4lue")
    tracker = Tracker(make_config(tracker=chosen), paths.root)
    began_s = time.perf_counter()
    tracker.start()
    assert time.perf_counter() - began_s < 5 and track(tracker) < 1  # Neither waits for a process or a server.
    tracker.close(0)
    assert tracker._process.wait(40) == 0
    (log,) = logs_of(paths.root)
    content = log.read_bytes()
    assert log.name == f"run-{paths.root.name}.wandb"
    assert b"loss" in content
    assert b"gpt2_tiny" in content
    assert b"uses password=" in content and b"v4lue" not in content


@pytest.mark.timeout(120)
def test_a_server_that_never_answers_delays_nothing(
    paths, make_config, wandb_home, stalling_server, monkeypatch, capfd
):
    url, accepted = stalling_server
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    paths.root.mkdir()
    tracker = Tracker(make_config(tracker=WandbTracker(mode="auto")), paths.root)
    began_s = time.perf_counter()
    tracker.start()
    assert time.perf_counter() - began_s < 5 and track(tracker) < 1  # Neither waits for a process or a server.
    began_s = time.perf_counter()
    tracker.close(0)
    assert time.perf_counter() - began_s < trackers.CLOSE_S + 1
    assert tracker._process.wait(40) == 0
    assert accepted, "the server was asked"
    assert logs_of(paths.root), "and the run went offline"


@pytest.mark.timeout(120)
def test_online_by_order_and_a_stalling_server_ends_in_one_report(
    paths, make_config, wandb_home, stalling_server, monkeypatch, capfd
):
    url, _ = stalling_server
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    paths.root.mkdir()
    tracker = Tracker(make_config(tracker=WandbTracker(mode="online")), paths.root)
    tracker.start()
    assert track(tracker) < 0.05
    began_s = time.perf_counter()
    tracker.close(0)
    assert time.perf_counter() - began_s < trackers.CLOSE_S + 1
    flush_reports()
    assert capfd.readouterr().err.count("dtk: tracker wandb: not finished after 5 s") == 1
    tracker._process.kill()
    tracker._process.wait()


@pytest.mark.timeout(120)
def test_a_server_that_refuses_the_run_leaves_a_whole_offline_log(paths, make_config, wandb_home, monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200)

        def do_POST(self):
            self.answer(401)

        def answer(self, code):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        paths.root.mkdir()
        tracker = Tracker(make_config(tracker=WandbTracker()), paths.root)
        tracker.start()
        track(tracker)
        tracker.close(0, timeout_s=60)
        server.shutdown()
    assert tracker._process.returncode == 0
    (log,) = logs_of(paths.root)
    assert b"loss" in log.read_bytes() and offline_logs(paths.root) == [log.parent]


def test_a_folder_without_a_log_is_not_offered_for_upload(tmp_path):
    (tmp_path / "wandb" / "offline-run-1" / "logs").mkdir(parents=True)
    assert offline_logs(tmp_path) == []


@pytest.mark.timeout(60)
def test_a_hung_tracker_ends_after_its_rank_with_what_it_started(tmp_path):
    hung = (
        "import subprocess, sys, time; from pathlib import Path; import dtk.record.tracker_process as t\n"
        "def hang(settings, lines):\n"
        "    service = subprocess.Popen(['sleep', '1000'])\n"
        f"    Path({str(tmp_path / 'pids')!r}).write_text(f'{{t.os.getpid()}} {{service.pid}}')\n"
        "    time.sleep(1000)\n"
        "t.FINISH_S, t.POLL_S, t.follow = 1.0, 0.1, hang\n"
        "t.main()\n"
    )
    rank = (
        "import subprocess, sys, time; from pathlib import Path\n"
        f"tracker = subprocess.Popen([sys.executable, '-c', {hung!r}], start_new_session=True, stdin=subprocess.PIPE)\n"
        "tracker.stdin.write(b'{}\\n'); tracker.stdin.flush()\n"
        f"while not Path({str(tmp_path / 'pids')!r}).is_file(): time.sleep(0.05)\n"
    )
    subprocess.run([sys.executable, "-c", rank], check=True, timeout=30)
    processes = []
    for pid in (tmp_path / "pids").read_text().split():
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(int(pid)))
    _, alive = psutil.wait_procs(processes, timeout=15)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(60)
def test_a_tracker_that_dies_is_reported_once(paths, make_config, wandb_home, monkeypatch, capfd):
    paths.root.mkdir()
    monkeypatch.setattr(trackers.sys, "executable", "/bin/false")
    tracker = Tracker(make_config(tracker=WandbTracker()), paths.root)
    tracker.start()
    time.sleep(0.5)
    assert track(tracker, records=200) < 0.3
    tracker.close(0)
    flush_reports()
    assert capfd.readouterr().err.count("dtk: tracker wandb: ") == 1


def test_the_probe_takes_two_seconds_at_most(stalling_server):
    began_s = time.perf_counter()
    assert not tracker_process.answers(stalling_server[0])
    assert time.perf_counter() - began_s < 3


def test_keys_come_from_the_environment_or_netrc(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not tracker_process.has_key("https://api.wandb.ai")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert tracker_process.has_key("https://api.wandb.ai")
    assert not tracker_process.has_key("https://elsewhere.example")
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert tracker_process.has_key("https://elsewhere.example")


@pytest.mark.timeout(60)
def test_tensorboard_writes_event_files(paths, make_config):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    paths.root.mkdir()
    tracker = Tracker(make_config(tracker=TensorboardTracker()), paths.root)
    tracker.start()
    track(tracker)
    tracker.close(0)
    assert tracker._process.wait(30) == 0
    assert list((paths.root / "tensorboard").glob("events.out.*"))


@pytest.mark.timeout(120)
def test_what_wandb_holds_of_a_run_read_back_by_its_own_messages(paths, make_config, wandb_home):
    """Groups, tags, typed configuration, axes, tables, an alert and the last checkpoint of a run that hung."""
    paths.root.mkdir()
    named = {"group": "sweep-1", "job_type": "train", "tags": ["a100"], "notes": "why", "checkpoints": "last"}
    write_json(paths.manifest, {"created": "2026-01-01T00:00:00+00:00"})
    write_json(paths.status, Status(state="hung", exit_code=1, reason="ranks called different collectives"))
    write_json(paths.parity, {"definitions": {"master_dtype": "of the weights"}, "master_dtype": "float32"})
    checkpoint = paths.checkpoint(2)
    checkpoint.mkdir(parents=True)
    (checkpoint / CHECKPOINT_INFO).write_text("{}")
    config = dataclasses.replace(make_config(tracker=WandbTracker(**named, x_axis="tokens")), tags=["mine"])
    tracker = Tracker(config, paths.root)
    tracker.start()
    for step in (1, 2):
        tracker.log({"step": step, "loss": 1.0, "tokens": 64 * step, "attempt": 0, "time_s": 1767225600.0 + 10 * step})
    tracker.alert("loss is nan", "step 2")
    tracker.close(1, timeout_s=60)
    assert tracker._process.wait(60) == 0
    (folder,) = offline_logs(paths.root)
    found = wandb_file.records(next(folder.glob("*.wandb")))
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.run_group, run.job_type, list(run.tags), run.notes) == (
        paths.root.name, "sweep-1", "train", ["mine", "a100"], "why",
    )  # fmt: skip
    assert wandb_file.items(run.config.update)["model"]["layers"] == config.model.layers
    rows = [wandb_file.items(record.history.item) for record in found if record.HasField("history")]
    assert [(row["step"], row["tokens"], row["seconds"]) for row in rows] == [(1, 64, 10.0), (2, 128, 20.0)]
    assert rows[-1]["parity/_type"] == rows[-1]["diagnosis/_type"] == "table-file"
    assert rows[-1]["_timestamp"] == 1767225620.0
    metrics = {
        record.metric.name or record.metric.glob_name: record.metric for record in found if record.HasField("metric")
    }
    assert metrics["*"].step_metric == "tokens" and metrics["attempt"].options.hidden
    assert [record.alert.title for record in found if record.HasField("alert")] == ["loss is nan", "run hung"]
    made = [record.artifact for record in found if record.HasField("artifact")]
    made += [record.request.log_artifact.artifact for record in found if record.HasField("request")]
    assert {artifact.type for artifact in made} >= {"report", "model"}


@pytest.mark.timeout(60)
def test_tensorboard_shows_hyperparameters_and_only_what_people_plot(paths, make_config):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    paths.root.mkdir()
    tracker = Tracker(make_config(tracker=TensorboardTracker()), paths.root)
    tracker.start()
    tracker.log({"step": 1, "loss": 2.0, "tokens": 64, "attempt": 0, "time_s": 5.0, "validation_samples": 8})
    tracker.close(0, timeout_s=40)
    assert tracker._process.wait(40) == 0
    events = EventAccumulator(str(paths.root / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"] and events.Scalars("loss")[0].wall_time == 5.0
    data = {tag: events.SummaryMetadata(tag).plugin_data.content for tag in events.PluginTagToContent("hparams")}
    started = HParamsPluginData.FromString(data["_hparams_/session_start_info"]).session_start_info.hparams
    assert started["strategy.name"].string_value and started["train.global_batch_size"].number_value > 0
    assert "_hparams_/session_end_info" in data


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
