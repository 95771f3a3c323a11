"""The tracker's process: what it does with each line of the rank, where it looks for a server and a key, its end."""

import io
import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil
import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from dtk.record import tracker_process, tracker_tables
from dtk.record.own_tracker import OwnTracker
from tests.patience import stretched


class Heard(OwnTracker):
    """Keeps what it is told."""

    calls: list[tuple[Any, ...]]

    def __init__(self):
        Heard.calls = []

    def begin(self, run_id, folder, config):
        self.calls.append(("begin", run_id, config))

    def log(self, step, figures, time_s):
        self.calls.append(("log", step, figures, time_s))

    def summary(self, figures):
        self.calls.append(("summary", figures))

    def alert(self, title, text):
        self.calls.append(("alert", title, text))

    def table(self, name, columns, rows):
        self.calls.append(("table", name))

    def artifact(self, name, kind, files):
        self.calls.append(("artifact", name, sorted(files)))

    def finish(self, exit_code):
        self.calls.append(("finish", exit_code))


def followed(paths: RunPaths, *messages: dict[str, Any], **settings: Any) -> list[tuple[Any, ...]]:
    target = f"{__name__}.Heard"
    about = {"name": "custom", "_target_": target, "arguments": {}, "allow": [target], "folder": str(paths.root)}
    lines = io.StringIO("".join(json.dumps(message) + "\n" for message in messages))
    tracker_process.follow({**about, "run_id": "r1", "config": {"seed": 1}, **settings}, lines)
    return Heard.calls


def test_each_line_is_one_call_in_order(paths: RunPaths) -> None:
    record = {"step": 3, "loss": 0.5, "mfu": None, "mfu_reason": "cpu", "time_s": 7.0}
    calls = followed(paths, {"log": record}, {"summary": {"loss": 0.5}}, {"alert": ["NaN", "step 3"]}, {"end": 0})
    assert calls == [
        ("begin", "r1", {"seed": 1}),
        ("log", 3, {"loss": 0.5, "time_s": 7.0}, 7.0),
        ("summary", {"loss": 0.5}),
        ("alert", "NaN", "step 3"),
        ("finish", 0),
    ]


def test_a_pipe_that_ends_without_a_word_is_a_run_that_failed(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_tables, "SETTLE_S", 0.1)
    paths.root.mkdir()
    failure = Failure(rank=1, reason="ValueError: bad batch", step=3)
    write_json(paths.status, Status(state="failed", exit_code=1, reason="ValueError: bad batch", failure=failure))
    calls = followed(paths, {"log": {"step": 1, "loss": 1.0, "time_s": 1.0}})
    assert ("alert", "run failed", "run: ValueError: bad batch") in calls and calls[-1] == ("finish", 1)


def test_what_cannot_be_concluded_is_said_and_the_rest_is_sent(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(paths: RunPaths, settle_s: float) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(tracker_tables, "ended", broken)
    assert followed(paths, {"end": 0})[-1] == ("finish", 0)
    assert capsys.readouterr().err == "dtk: tracker: OSError: the disk is gone\n"


def test_figures_are_the_numbers_of_a_record() -> None:
    record = {"step": 1, "loss": 0.5, "tokens": 8, "mfu": None, "mfu_reason": "cpu", "samples": ["a"]}
    assert tracker_process.scalars(record) == {"loss": 0.5, "tokens": 8}


def test_the_server_is_that_of_the_environment_or_of_the_login(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    assert tracker_process.base_url() == "https://api.wandb.ai"
    (tmp_path / "settings").write_text("[default]\nbase_url = https://own.example\n")
    assert tracker_process.base_url() == "https://own.example"
    monkeypatch.setenv("WANDB_BASE_URL", "https://typed.example")
    assert tracker_process.base_url() == "https://typed.example"
    monkeypatch.delenv("WANDB_BASE_URL")
    (tmp_path / "settings").write_bytes(b"\xff\xfe not settings")
    assert tracker_process.base_url() == "https://api.wandb.ai", "a damaged file is as none"


@pytest.mark.timeout(60)
def test_the_probe_of_a_server_that_never_answers_ends(stalling_server):
    assert not tracker_process.answers(stalling_server[0])


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
def test_a_hung_tracker_ends_after_its_rank_with_what_it_started(tmp_path):
    hung = (
        "import subprocess, sys, time; from pathlib import Path; import dtk.record.tracker_process as t\n"
        "def hang(settings, lines):\n"
        "    service = subprocess.Popen(['sleep', '1000'], start_new_session=True)  # As W&B starts its core.\n"
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
    subprocess.run([sys.executable, "-c", rank], check=True, timeout=stretched(30))
    processes = []
    for pid in (tmp_path / "pids").read_text().split():
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(int(pid)))
    _, alive = psutil.wait_procs(processes, timeout=15)
    assert not [item for item in alive if item.status() != psutil.STATUS_ZOMBIE]
