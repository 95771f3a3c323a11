"""Machines that are made bad: a process with other limits, a tiny file system, a namespace of its own."""

import json
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from dtk.doctor.registry import CHECKS

ROOT = Path(__file__).parents[3]


ASK = """
import json, sys
from pathlib import Path
from dtk.doctor import {module}
from dtk.doctor.model import Scope
result = {call}
print(json.dumps([result.status, result.summary, [r.command for r in result.remedies]]))
"""


def checks_of(*files):
    """The checks of some files of the doctor: name -> what runs one."""
    return {check.name: check.run for check in CHECKS if check.run.__module__.rpartition(".")[2] in files}


def ask(call, module, *, before=None, prefix=(), **environment):
    """What a check answers in a process of its own, which `before` (preexec) or `prefix` (a command) has changed."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ASK.format(module=module, call=call)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def tiny(folder, options):
    """A file system of its own at a folder; skips where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def unshared(*flags):
    """A command prefix that takes a namespace of its own; skips where that is not allowed."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode:
        pytest.skip(f"unshare {' '.join(flags)} is not allowed here")
    return ["unshare", *flags]


def lower(kind, soft, hard=None):
    return lambda: resource.setrlimit(kind, (soft, soft if hard is None else hard))
