"""A command under the live watch, as far as it needs no ranks: its end, its log, and what is said of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import FINISHED, RunPaths, write_json
from dtk.launch import watched
from dtk.launch.watched import HUNG, run_watched
from tests.patience import stretched


def watch(script: str, folder: Path) -> int:
    """Run a shell script under the watch, whose limits are not reached."""
    return run_watched(["sh", "-c", script], folder, 60.0, 60.0)


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def ends(pid: int) -> None:
    """Wait for a killed process: it has no environment any more a moment before it has ended."""
    limit_s = time.monotonic() + stretched(10.0)
    while runs(pid):
        assert time.monotonic() < limit_s, "what a failed job leaves behind ends with it"
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "job"


def test_the_end_of_a_command_that_ends_well_is_recorded(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    assert watch("echo out; echo err >&2", folder) == 0
    record = json.loads(RunPaths(folder).finished.read_text(encoding="utf-8"))
    assert record["kind"] == FINISHED and record["command"] == ["sh", "-c", "echo out; echo err >&2"]
    assert (folder / "logs" / socket.gethostname() / "stderr.log").read_text(encoding="utf-8") == "err\n"
    captured = capfd.readouterr()
    assert captured.out == "out\n" and captured.err.startswith("dtk watch: records in job\n")


def test_a_command_that_fails_keeps_its_exit_code(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    assert watch("exit 7", folder) == 7
    assert "the command failed with exit code 7 before any process group was created" in capfd.readouterr().err
    assert not RunPaths(folder).finished.exists()


def test_a_command_with_ranks_that_fails_gets_its_outcome_although_no_cause_is_found(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    beat = RunPaths(folder).heartbeat(0)
    beat.parent.mkdir(parents=True)
    assert (
        watch("echo 'RuntimeError: Timed out waiting 15000ms for recv operation to complete' >&2; exit 3", folder) == 3
    )
    error = capfd.readouterr().err
    assert "\nUNDECIDED: " in error and "the command failed with exit code 3; for what was recorded" in error


def test_what_the_user_set_is_kept_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "17")
    watch('echo "$TORCH_FR_BUFFER_SIZE $DTK_WATCH_FOLDER"', folder)
    captured = capfd.readouterr()
    assert captured.out == f"17 {folder}\n"
    assert "dtk watch: your TORCH_FR_BUFFER_SIZE=17 is kept" in captured.err


def test_a_verdict_ends_the_watch_and_is_said_first(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    paths = RunPaths(folder)
    verdict = {
        "kind": "stall",
        "reason": "rank 1 stood still",
        "culprits": [1],
        "victims": [0],
        "attempt": 2,
        "time_s": 5.0,
    }
    code = f"import json, os, time; os.makedirs({str(paths.verdict(2).parent)!r}); "
    code += f"open({str(paths.verdict(2))!r} + '.part', 'w').write(json.dumps({verdict!r})); "
    code += f"os.rename({str(paths.verdict(2))!r} + '.part', {str(paths.verdict(2))!r}); time.sleep(60)"
    assert run_watched([sys.executable, "-c", code], folder, 60.0, 60.0) == HUNG
    lines = capfd.readouterr().err.splitlines()
    assert lines[1] == "dtk watch: rank 1 stood still" and lines[-1].endswith("diagnose job -v")


@pytest.mark.parametrize(
    ("answers", "stood"),
    [
        ([], False),
        ([{"idle_s": 9.0, "inside": "all_reduce"}], True),
        ([{"idle_s": 9.0, "inside": "all_reduce"}, {"idle_s": 9.0}], True),
        ([{"idle_s": 9.0, "inside": "all_reduce"}, {"idle_s": 0.0}], False),
        ([{"idle_s": 9.0}], False),
        ([["not what a rank writes"], {"idle_s": 9.0, "inside": "x"}], False),
    ],
)
def test_whether_all_ranks_stood_still(answers: list[Any], stood: bool, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for rank, answer in enumerate(answers):
        path = paths.answer(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(answer), encoding="utf-8")
    assert watched._stood(paths) is stood


def test_ranks_are_asked_and_those_of_other_hosts_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "ANSWER_S", 30.0)
    paths = RunPaths(tmp_path)
    beat = {"step": 1, "region": "step", "time_s": 1.0, "pid": 1, "attempt": 0}
    for rank, host in enumerate((socket.gethostname(), "another-node")):
        write_json(paths.heartbeat(rank), {"rank": rank, **beat, "host": host})
    write_json(paths.answer(0), {"idle_s": 1.0})
    watched._ask(paths)
    assert paths.question.exists(), "it did not wait for the other node"


def test_what_a_failed_job_leaves_behind_ends_with_it_and_nothing_else(tmp_path: Path) -> None:
    lines = [
        "import signal, subprocess, sys",
        "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '",
        "code += 'print(flush=True); time.sleep(600)'",
        "worker = subprocess.Popen([sys.executable, '-S', '-c', code], start_new_session=True, stdout=subprocess.PIPE)",
        "worker.stdout.readline()",
        "open(sys.argv[1], 'w').write(str(worker.pid))",
    ]
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for code, remaining in ((3, False), (0, True)):
            text = tmp_path / f"pid_{code}"
            script = "\n".join([*lines, f"sys.exit({code})"])
            folder = tmp_path / f"job_{code}"
            assert run_watched([sys.executable, "-S", "-c", script, str(text)], folder, 60.0, 60.0) == code
            pid = int(text.read_text())
            if remaining:
                assert runs(pid), "a service that a successful command leaves behind stays"
                os.kill(pid, signal.SIGKILL)
            else:
                ends(pid)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
