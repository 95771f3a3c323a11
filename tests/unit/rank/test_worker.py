"""What a rank says when it begins, and how it closes a run that ended in order."""

import signal
import subprocess
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.config import schema
from dtk.parallel.stop import StopRequest
from dtk.rank import worker
from dtk.record.run_folder import begin
from tests.unit.train.conftest import Build, alone, build, config  # noqa: F401


@pytest.mark.parametrize(
    ("finished", "shortfall", "ended"),
    [
        (True, "", ("finished", 0, "")),
        (True, "the last checkpoint was not kept", ("failed", 1, "the last checkpoint was not kept")),
        (False, "", ("preempted", 128 + 10, "stopped by a signal")),
        (False, "no room", ("preempted", 128 + 10, "stopped by a signal; no room")),
    ],
)
def test_the_status_says_how_it_ended(build: Build, finished, shortfall, ended, tmp_path, monkeypatch):  # noqa: F811
    loop, stop, paths = build(config()), StopRequest(), RunPaths(tmp_path)
    begin(paths, 0)
    loop.state.step, stop.signal_number = 3, 10
    monkeypatch.setattr(loop.checkpoints, "shortfall", lambda: shortfall)
    code = worker._close(paths, finished, loop, stop)
    status = read_status(paths.status)
    assert (status.state, code, status.reason) == ended and (status.step, status.exit_code) == (3, code)


def test_a_run_that_a_callback_ended_is_finished_and_says_so(build: Build, tmp_path, capsys):  # noqa: F811
    from types import SimpleNamespace

    loop, paths = build(config()), RunPaths(tmp_path)
    begin(paths, 0)
    loop.enough = True
    loop.callbacks.training = SimpleNamespace(reason="the loss is low enough")
    assert worker._close(paths, True, loop, StopRequest()) == 0
    assert read_status(paths.status).reason == "ended by a callback: the loss is low enough"
    assert "after step 0 ended by a callback: the loss is low enough" in capsys.readouterr().out


def test_the_model_and_its_data_are_described(build: Build, capsys):  # noqa: F811
    worker._describe(build(config()))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("model: ") and first.endswith("SYNTHETIC DATA: the loss is meaningless")
    assert second.startswith("communication: 0 bytes per step; MFU not available: ")


def test_a_rank_that_cannot_meet_the_others_leaves_what_went_wrong(tmp_path: Path, monkeypatch):
    from dtk.rank.job import Job

    class Refusing:
        def set(self, *given: object) -> None:
            raise RuntimeError("the store is gone")

        get = add = check = compare_set = set_timeout = timeout = set

    def worker_dies_meanwhile() -> None:
        subprocess.run(["true"], check=True)  # SIGCHLD, at which torch's data loader raises.
        failures.append("told")

    def raising(*about: object) -> None:
        raise AssertionError("DataLoader worker is killed by signal")

    failures: list[str] = []
    text = signal.signal(signal.SIGCHLD, raising)
    monkeypatch.setattr(worker.StopRequest, "install", lambda self, own_launcher: None)
    job = Job(tmp_path, 0, 0, 0, 1, "cpu", "gloo", 0, own_launcher=False)
    settings = config(record=schema.RecordConfig(level="off"), watch=schema.WatchConfig(enabled=False))
    code = worker.work(settings, job, Refusing(), on_failure=worker_dies_meanwhile)  # type: ignore[arg-type]
    signal.signal(signal.SIGCHLD, text)
    assert (code, failures) == (1, ["told"])
    assert RunPaths(tmp_path).error(0, 0).is_file()
