"""`python -m dtk.rank`: a rank's process ends with its launcher, and exits with the worker's code."""

import os
import subprocess
import sys

import pytest

from tests.patience import stretched

STAND_IN = """
import gc, os, runpy, sys, types
worker = types.ModuleType("dtk.rank.worker")
def train(folder):
    print(type(folder).__name__, folder, gc.isenabled(), os.environ["TORCHELASTIC_RESTART_COUNT"])
    return int(folder.name)
worker.main = train
sys.modules["dtk.rank.worker"] = worker
runpy.run_module("dtk.rank", run_name="__main__", alter_sys=True)
"""
"""Its worker is tested beside; here only the process around it is."""


def run(folder, launcher_pid):
    """Start it as the second restart; the agent of one attempt would say 0."""
    return subprocess.run(
        [sys.executable, "-c", STAND_IN, str(folder), str(launcher_pid), "2"],
        capture_output=True,
        env={**os.environ, "TORCHELASTIC_RESTART_COUNT": "0"},
        text=True,
        timeout=stretched(60),
        check=False,
    )


@pytest.mark.timeout(90)
@pytest.mark.parametrize("code", [0, 7])
def test_it_exits_with_the_workers_code_and_trains_without_garbage_collection(tmp_path, code):
    ended = run(tmp_path / str(code), os.getpid())
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.split() == ["PosixPath", str(tmp_path / str(code)), "False", "2"]


@pytest.mark.timeout(90)
def test_a_rank_whose_launcher_is_gone_does_not_train(tmp_path):
    ended = run(tmp_path / "0", 2**22 + 1)  # Above the largest process id of Linux.
    assert (ended.returncode, ended.stdout) == (1, "")
