"""How a child ends: with its parent, with what went wrong told, and never later than its work."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import stretched

ROOT = Path(__file__).resolve().parents[3]


def run(code: str) -> "subprocess.CompletedProcess[str]":
    """Run Python code that may use `run_child`."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys, os, time\nfrom dtk.rank.child import run_child, send_record\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=stretched(30),
    )


def test_a_child_that_ends_well_has_its_output_written_and_runs_nothing_more() -> None:
    done = run("import atexit\natexit.register(print, 'late')\nrun_child(lambda: (send_record(step=3), print('end')))")
    assert done.returncode == 0
    text, rest = done.stdout.splitlines()
    assert json.loads(text) == {"step": 3} and rest == "end", "gloo's threads may abort what comes later"


def test_what_went_wrong_is_told_in_one_line_and_traced() -> None:
    done = run("def main():\n    raise ValueError('two\\nlines')\nrun_child(main)")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": "two lines", "type": "ValueError"}
    assert "Traceback" in done.stderr and "in main" in done.stderr


def test_a_child_does_not_outlive_a_parent_that_is_killed() -> None:
    child = "import os, time; from dtk.rank.child import end_with; end_with(int(os.environ['PARENT'])); "
    child += "print(os.getpid(), flush=True); time.sleep(60)"
    parent = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env={{**os.environ, 'PARENT': str(os.getpid())}})\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            break
        if state == "Z":
            break
        time.sleep(0.02)
    else:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the child lives on")


def test_a_child_whose_parent_is_already_another_ends_at_once() -> None:
    assert run("from dtk.rank.child import end_with\nend_with(1)\nprint('lives')").stdout == ""
