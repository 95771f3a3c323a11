"""What other processes of dtk need: to find dtk, a port, a readable reason of their end, an end by SIGTERM."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from dtk.launch.processes import ended_by_sigterm, free_port, importable, killed_by

ROOT = Path(__file__).resolve().parents[3]


def test_dtks_own_source_comes_first() -> None:
    assert importable({"A": "b"}) == {"A": "b", "PYTHONPATH": str(ROOT)}
    assert importable({"PYTHONPATH": "/x"})["PYTHONPATH"] == f"{ROOT}{os.pathsep}/x"


def test_an_installed_dtk_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtk.launch.processes.source_tree", lambda: None)
    environment = {"PYTHONPATH": "/x"}
    assert importable(environment) == environment and importable(environment) is not environment


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("", free_port()))


def test_only_sigkill_hints_at_memory() -> None:
    assert killed_by("SIGKILL") == "killed by SIGKILL (the kernel does this when memory runs out: see dmesg)"
    assert killed_by("SIGSEGV") == "killed by SIGSEGV"


def test_sigterm_ends_as_ctrl_c_does_and_only_inside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_does_not_end_what_follows_the_first() -> None:
    ended = False
    with ended_by_sigterm():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            mask = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True)
            assert not int(mask.stdout.split()[1], 16) >> (signal.SIGTERM - 1) & 1, "a child can be ended"
            ended = True
    assert ended
