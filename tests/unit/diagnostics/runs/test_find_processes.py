import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from diagnostics.contract.artifacts import Status, write_json
from diagnostics.runs import find
from diagnostics.runs.find import process_start, read_run, still_runs, suspended

HERE = {"host": socket.gethostname(), "pid": os.getpid(), "pid_start": process_start(os.getpid())}


def test_a_process_is_known_by_its_id_and_start():
    assert still_runs(HERE) is True
    assert still_runs({key: HERE[key] for key in ("host", "pid")}) is True
    assert still_runs({**HERE, "pid_start": HERE["pid_start"] + 1}) is False
    for unknown in ({**HERE, "host": "elsewhere"}, {**HERE, "pid": "1"}, {}):
        assert still_runs(unknown) is None


def test_the_start_is_the_kernels():
    psutil = pytest.importorskip("psutil")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert HERE["pid_start"] / ticks_per_s + psutil.boot_time() == pytest.approx(psutil.Process().create_time(), abs=2)


def test_a_process_that_nobody_has_buried_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    about = {**HERE, "pid": process.pid, "pid_start": None}
    end_s = time.monotonic() + 20
    while still_runs(about) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert still_runs(about) is False  # A zombie: it was not waited for yet.
    process.wait()
    assert still_runs(about) is False


def test_a_name_of_the_command_does_not_mislead(tmp_path, monkeypatch):
    monkeypatch.setattr(find, "PROC", tmp_path)
    for pid, name in ((7, "(x) R 1 2) "), (8, "a b")):
        (tmp_path / str(pid)).mkdir()
        fields = " ".join(["S", *map(str, range(4, 53))])
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}\n")
        assert process_start(pid) == 22


def test_without_proc_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(find, "PROC", tmp_path / "absent")
    assert still_runs(HERE) is None


def test_a_run_whose_process_id_was_given_out_again_is_lost(tmp_path):
    write_json(tmp_path / "status.json", Status(state="running"))
    write_json(tmp_path / "manifest.json", HERE)
    assert read_run(tmp_path).state == "running"
    write_json(tmp_path / "manifest.json", {**HERE, "pid_start": 1})
    assert read_run(tmp_path).state == "lost"


def test_a_stopped_rank_is_seen_if_it_is_of_the_run():
    parent = {"pid": os.getpid()}
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        assert not suspended(child.pid, parent)
        child.send_signal(signal.SIGSTOP)
        ends_s = time.monotonic() + 10
        while not suspended(child.pid, parent) and time.monotonic() < ends_s:
            time.sleep(0.01)
        assert suspended(child.pid, parent)
        assert suspended(child.pid, {"pid": child.pid}), "the run's own process"
        assert not suspended(child.pid, {"pid": 2**22 + 1}) and not suspended(child.pid, {})
    finally:
        child.kill()
        child.wait()
    assert not suspended(child.pid, parent)
