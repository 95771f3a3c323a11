import dataclasses
import importlib.util
import os
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from diagnostics.contract.artifacts import CHECKPOINT_INFO, Status, write_json
from dtk.config.schema import NoTracker, TensorboardTracker, WandbTracker
from dtk.errors import DtkError
from dtk.record import trackers
from dtk.record.guard import flush_reports
from dtk.record.trackers import Tracker, check_tracker, offline_logs, offline_reason
from tests.patience import stretched
from tests.unit.record import wandb_file
from tests.work import calls_in

STARTED, QUEUED = 100, 20
"""Functions that the training thread calls at most: to start a thread, which starts the process (a thousand calls),
and to queue a record, which the thread turns into JSON and sends."""


@pytest.fixture
def wandb_home(tmp_path, monkeypatch):
    """A user without a key, whose settings can not leak into the test."""
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("the extra wandb is not installed")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def logs_of(folder):
    return list(folder.glob("wandb/offline-run-*/*.wandb"))


def track(tracker, records=20):
    """Log some steps; return the most functions that one of them called in this thread."""
    calls = 0
    for step in range(records):
        record = {"step": step, "loss": 1.0 / (step + 1), "mfu": None, "mfu_reason": "cpu"}
        calls = max(calls, calls_in(partial(tracker.log, record))[1])
    tracker.summary({"loss": 0.05})
    return calls


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    check_tracker(NoTracker())
    monkeypatch.setattr("dtk.extras.find_spec", lambda name: None)
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
    assert calls_in(tracker.start)[1] < STARTED and track(tracker) < QUEUED
    tracker.close(0)
    assert tracker._process.wait(stretched(40)) == 0
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
    assert calls_in(tracker.start)[1] < STARTED and track(tracker) < QUEUED
    tracker.close(0)
    assert tracker._process.wait(stretched(40)) == 0
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
    assert track(tracker) < QUEUED
    tracker.close(0)
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
def test_a_tracker_that_dies_is_reported_once(paths, make_config, wandb_home, monkeypatch, capfd):
    paths.root.mkdir()
    monkeypatch.setattr(trackers.sys, "executable", "/bin/false")
    tracker = Tracker(make_config(tracker=WandbTracker()), paths.root)
    tracker.start()
    time.sleep(0.5)
    assert track(tracker, records=200) < QUEUED
    tracker.close(0)
    flush_reports()
    assert capfd.readouterr().err.count("dtk: tracker wandb: ") == 1


@pytest.mark.timeout(60)
def test_tensorboard_writes_event_files(paths, make_config):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    paths.root.mkdir()
    tracker = Tracker(make_config(tracker=TensorboardTracker()), paths.root)
    tracker.start()
    track(tracker)
    tracker.close(0)
    assert tracker._process.wait(stretched(30)) == 0
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
    assert tracker._process.wait(stretched(60)) == 0
    (folder,) = offline_logs(paths.root)
    result = wandb_file.records(next(folder.glob("*.wandb")))
    (run,) = [record.run for record in result if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.run_group, run.job_type, list(run.tags), run.notes) == (
        paths.root.name, "sweep-1", "train", ["mine", "a100"], "why",
    )  # fmt: skip
    assert wandb_file.items(run.config.update)["model"]["layers"] == config.model.layers
    rows = [wandb_file.items(record.history.item) for record in result if record.HasField("history")]
    assert [(row["step"], row["tokens"], row["seconds"]) for row in rows] == [(1, 64, 10.0), (2, 128, 20.0)]
    assert rows[-1]["parity/_type"] == rows[-1]["diagnosis/_type"] == "table-file"
    assert rows[-1]["_timestamp"] == 1767225620.0
    metrics = {
        record.metric.name or record.metric.glob_name: record.metric for record in result if record.HasField("metric")
    }
    assert metrics["*"].step_metric == "tokens" and metrics["attempt"].options.hidden
    assert [record.alert.title for record in result if record.HasField("alert")] == ["loss is nan", "run hung"]
    artifacts = [record.artifact for record in result if record.HasField("artifact")]
    artifacts += [record.request.log_artifact.artifact for record in result if record.HasField("request")]
    assert {artifact.type for artifact in artifacts} >= {"report", "model"}


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
    assert tracker._process.wait(stretched(40)) == 0
    events = EventAccumulator(str(paths.root / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"] and events.Scalars("loss")[0].wall_time == 5.0
    data = {tag: events.SummaryMetadata(tag).plugin_data.content for tag in events.PluginTagToContent("hparams")}
    started = HParamsPluginData.FromString(data["_hparams_/session_start_info"]).session_start_info.hparams
    assert not [name for name in started if name.startswith(("checkpoint", "launcher", "record", "watch", "callbacks"))]
    assert started["train.compile"].string_value == "False"
    assert started["strategy.name"].string_value and started["train.global_batch_size"].number_value > 0
    assert "_hparams_/session_end_info" in data


@pytest.mark.timeout(60)
def test_tensorboard_calls_no_run_successful_that_failed(paths, make_config):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    paths.root.mkdir()
    write_json(paths.status, Status(state="failed", exit_code=1))
    tracker = Tracker(make_config(tracker=TensorboardTracker()), paths.root)
    tracker.start()
    tracker.close(1, timeout_s=40)
    assert tracker._process.wait(stretched(40)) == 0
    events = EventAccumulator(str(paths.root / "tensorboard"))
    events.Reload()
    assert set(events.PluginTagToContent("hparams")) == {"_hparams_/experiment", "_hparams_/session_start_info"}
