"""`python -m dtk` is the `dtk` command: the same output, the same exit codes."""

import subprocess
import sys

import pytest

import dtk
from tests.patience import stretched


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dtk", *arguments], capture_output=True, text=True, timeout=stretched(60), check=False
    )


@pytest.mark.timeout(90)
def test_it_prints_what_the_command_prints():
    ended = run("--version")
    assert ended.returncode == 0 and dtk.__version__ in ended.stdout


@pytest.mark.timeout(90)
def test_an_unknown_command_exits_with_2_and_no_traceback():
    ended = run("no-such-command")
    assert ended.returncode == 2
    assert "no-such-command" in ended.stderr and "Traceback" not in ended.stderr
