"""A command of the user's runs as if nobody stood between: exit code, signals and output are its own."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dtk.errors import DtkError
from dtk.launch import command as command_module
from dtk.launch.command import Command
from tests.patience import stretched

TRAPPED = "trap 'exit 5' TERM; echo ready >&2; while :; do sleep 0.02; done"


def shell(script: str, log: Path) -> Command:
    return Command(["sh", "-c", script], dict(os.environ), log)


def end_of(command: Command) -> int:
    """Wait for the end, which a defect must not put off for ever."""
    code = command.wait(stretched(20))
    assert code is not None, "the command continues"
    return code


def wait_for(log: Path, text: bytes) -> None:
    """Wait until the command has said that."""
    ends_s = time.monotonic() + 20
    while not (log.exists() and text in log.read_bytes()):
        assert time.monotonic() < ends_s, "the command says nothing"
        time.sleep(0.01)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "stderr.log"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)])
def test_the_exit_code_is_as_a_shell_gives_it(script: str, code: int, log: Path) -> None:
    with shell(script, log) as command:
        assert end_of(command) == code and command.poll() == code and not command.stopped


def test_error_output_is_shown_and_kept_as_it_was(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with shell("printf 'out\\n'; printf 'bad \\377\\n' >&2", log) as command:
        end_of(command)
        command.drain()
    assert log.read_bytes() == b"bad \xff\n"
    assert capfd.readouterr().out == "out\n"


def test_what_follows_may_be_no_evidence(log: Path, tmp_path: Path) -> None:
    with shell(f"echo before >&2; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo after >&2", log) as command:
        wait_for(log, b"before")
        command.keeps_log = False
        (tmp_path / "go").touch()
        end_of(command)
        command.drain()
    assert log.read_bytes() == b"before\n"


def test_a_long_log_is_begun_anew_and_the_part_before_is_kept(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "LOG_BYTES", 3000)
    monkeypatch.setattr(command_module, "_CHUNK", 1000)
    with shell("i=0; while [ $i -lt 700 ]; do echo line$i >&2; i=$((i+1)); done", log) as command:
        end_of(command)
        command.drain()
    last, earlier = log.read_bytes(), log.with_name("earlier.log").read_bytes()
    assert (earlier + last).endswith(b"line699\n") and len(last) <= 4000 and 3000 < len(earlier) <= 4000


def test_what_cannot_be_started_is_one_line(log: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(DtkError, match=r"cannot run /no/such/program: No such file"):
        Command(["/no/such/program"], {}, log).__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(DtkError, match=r"cannot run sh: (Not a directory|File exists)"):
        shell("exit 0", tmp_path / "file" / "stderr.log").__enter__()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_reaches_the_command(log: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with shell(TRAPPED, log) as command:
        wait_for(log, b"ready")
        os.kill(os.getpid(), signal.SIGTERM)
        assert end_of(command) == 5 and command.stopped and command.pending_signal is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_first_signal_waits_until_it_is_released(log: Path) -> None:
    with shell(TRAPPED, log) as command:
        command.holds = True
        wait_for(log, b"ready")
        os.kill(os.getpid(), signal.SIGTERM)
        assert command.wait(0.2) is None and command.pending_signal == signal.SIGTERM and command.stopped
        command.release()
        assert end_of(command) == 5 and command.pending_signal is None
        command.release()  # Does nothing a second time.


def test_a_second_signal_goes_through_at_once(log: Path) -> None:
    with shell(TRAPPED, log) as command:
        command.holds = True
        wait_for(log, b"ready")
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert end_of(command) == 5 and command.pending_signal is None


def test_a_command_that_ignores_sigterm_is_killed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "KILL_S", 0.2)
    ignoring = (
        "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('ready', file=sys.stderr, flush=True)"
    )
    ignoring += "; time.sleep(60)"
    with Command([sys.executable, "-c", ignoring], dict(os.environ), log) as command:
        wait_for(log, b"ready")
    assert command.poll() == 137
