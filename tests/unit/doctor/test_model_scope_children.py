"""Child processes: one that hangs, several of which one fails."""

import os
import time
from pathlib import Path

import pytest

from dtk.doctor.model import run_child, run_children


def test_a_child_that_hangs_is_ended_with_what_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, json\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid))\n"
        "print(json.dumps({'begin': 'it'}), flush=True)\ntime.sleep(600)"
    )
    said = run_child(["-c", code], 2)
    assert (said.records, said.problem, said.late) == ([{"begin": "it"}], "no answer in 2 s", True)
    ends_s = time.monotonic() + 5
    while _lives(int(pid_file.read_text())) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not _lives(int(pid_file.read_text()))


def _lives(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.timeout(120)
def test_the_others_are_not_waited_for_when_one_fails(monkeypatch):
    monkeypatch.setattr("dtk.doctor.model.GRACE_S", 0.3)
    code = "import os, time\nif 'FAIL' in os.environ: raise ValueError('no')\ntime.sleep(600)"
    sleeper, failing = run_children(["-c", code], 60, {0: os.environ, 1: {**os.environ, "FAIL": "1"}})
    assert sleeper.late
    assert failing.problem == "failed: ValueError: no"
