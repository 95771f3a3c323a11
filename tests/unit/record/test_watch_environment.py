"""Both ends of what `dtk watch` tells the ranks."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.record.watch_environment import FOLDER, STANDS_S, StallAnswer, watch_variables, watched_processes, watched_run


def test_what_is_told_is_what_is_heard(tmp_path, monkeypatch):
    for name, value in watch_variables(RunPaths(tmp_path), 12.5).items():
        monkeypatch.setenv(name, value)
    paths, stall_timeout_s = watched_run()
    assert (paths.root, stall_timeout_s) == (tmp_path, 12.5)


def test_the_ranks_python_listens_first_and_keeps_its_own_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/own")
    first, *rest = watch_variables(RunPaths(Path("/w")), 1.0)["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert rest == ["/own"]
    monkeypatch.delenv("PYTHONPATH")
    assert os.pathsep not in watch_variables(RunPaths(Path("/w")), 1.0)["PYTHONPATH"]


def test_without_a_watch_there_is_no_run(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(KeyError):
        watched_run()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_the_processes_that_are_watched(tmp_path):
    variables = {**os.environ, FOLDER: str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], env=variables, stdin=subprocess.PIPE)
    try:
        ends_s = time.monotonic() + 30
        while not (watched := watched_processes(RunPaths(tmp_path))) and time.monotonic() < ends_s:
            time.sleep(0.01)  # Until the system has set up its variables.
        assert watched == [process.pid]
        assert watched_processes(RunPaths(tmp_path / "other")) == []
        assert watched_processes(RunPaths(tmp_path.parent)) == [], "the whole path counts"
    finally:
        process.communicate(b"\n")
    assert watched_processes(RunPaths(tmp_path)) == []


@pytest.fixture
def probe(tmp_path):
    dumped = []
    paths = RunPaths(tmp_path)
    stall_answer = StallAnswer(paths, 2, lambda: dumped.append(1))
    stall_answer.dumped = dumped
    return stall_answer


def ask(probe):
    probe.paths.question.parent.mkdir(parents=True, exist_ok=True)
    probe.paths.question.write_text("")


def answer(probe):
    path = probe.paths.answer(2)
    return json.loads(path.read_text()) if path.exists() else None


def test_nobody_asks(probe):
    probe.answer(99.0, True)
    assert answer(probe) is None
    assert not probe.dumped


@pytest.mark.parametrize(("idle_s", "dumps"), [(0.0, 0), (STANDS_S - 0.1, 0), (STANDS_S, 1), (600.0, 1)])
def test_a_rank_that_stands_still_dumps_before_it_answers(probe, idle_s, dumps):
    ask(probe)
    probe.answer(idle_s, True)
    assert answer(probe) == {"idle_s": idle_s, "inside": True}
    assert len(probe.dumped) == dumps


def test_it_answers_once(probe):
    ask(probe)
    probe.answer(STANDS_S, False)
    probe.answer(99.0, True)
    assert answer(probe) == {"idle_s": STANDS_S, "inside": False}
    assert len(probe.dumped) == 1


def test_dumps_that_fail_cost_no_answer(tmp_path, capfd):
    def fails():
        raise OSError("disk full")

    probe = StallAnswer(RunPaths(tmp_path), 2, fails)
    ask(probe)
    probe.answer(STANDS_S, True)
    assert answer(probe)["inside"]
