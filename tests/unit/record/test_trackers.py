import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from dtk.config.schema import NoTracker, TensorboardTracker, WandbTracker
from dtk.errors import DtkError
from dtk.record import tracker_process, trackers
from dtk.record.guard import flush_reports
from dtk.record.trackers import Tracker, check_tracker, offline_logs, offline_reason


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
    tracker = Tracker(make_config(tracker=WandbTracker(group="g", tags=["t"])), paths.root)
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
    assert capfd.readouterr().err.count("dtk: tracker wandb: not done after 5 s") == 1
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
        "def hang(lines):\n"
        "    service = subprocess.Popen(['sleep', '1000'])\n"
        f"    Path({str(tmp_path / 'pids')!r}).write_text(f'{{t.os.getpid()}} {{service.pid}}')\n"
        "    time.sleep(1000)\n"
        "t.FINISH_S, t.POLL_S, t.follow = 1.0, 0.1, hang\n"
        "t.main()\n"
    )
    rank = (
        "import subprocess, sys, time; from pathlib import Path\n"
        f"subprocess.Popen([sys.executable, '-c', {hung!r}], start_new_session=True, stdin=subprocess.PIPE)\n"
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
