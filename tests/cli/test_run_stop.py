"""Ctrl-C, SIGTERM and SIGKILL at any moment: what is complete survives, and the run continues from it."""

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from diagnostics.contract.artifacts import RunPaths
from tests.cli.command import ROOT, TINY, environment, metrics, only_run, run, start, status

LONG = [*TINY, "train.steps=100000", "checkpoint.every=100000", "train.log_every=1"]


def wait_for_step(folder: Path, step: int, timeout_s: float = 200) -> Path:
    end = time.time() + timeout_s
    while time.time() < end:
        runs = [path for path in folder.iterdir() if path.is_dir()]
        if runs and (runs[0] / "metrics.jsonl").exists() and len(metrics_lines(runs[0])) >= step:
            return runs[0]
        time.sleep(0.05)
    raise AssertionError("no steps were made")


def metrics_lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def losses(folder: Path) -> dict[int, float]:
    """Step -> loss; a later attempt's record of the same step wins."""
    return {record["step"]: record["loss"] for record in metrics(folder) if "loss" in record}


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.extended), (signal.SIGTERM, 143)]
)
def test_a_signal_stops_at_the_next_step_with_a_checkpoint(number, code, tmp_path):
    process = start(tmp_path, *LONG)
    folder = wait_for_step(tmp_path, 3)
    process.send_signal(number)
    out, error = process.communicate(timeout=200)
    assert process.returncode == code, out + error
    record = status(folder)
    assert (record["state"], record["exit_code"]) == ("preempted", code)
    step = record["step"]
    assert RunPaths(folder).checkpoint(step).is_dir()
    assert max(losses(folder)) == step
    assert f"resume={folder}" in out
    assert "again" in error

    resumed = run(tmp_path, f"resume={folder}", f"train.steps={step + 4}", "checkpoint.at_end=false")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"resumed from step_{step:08d}" in resumed.stdout
    assert max(losses(folder)) == step + 4
    assert status(folder)["attempt"] == 1


def test_a_second_signal_stops_at_once(tmp_path):
    process = start(tmp_path, *LONG)
    folder = wait_for_step(tmp_path, 2)
    children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        child.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 130
    record = status(folder)
    assert (record["state"], record["reason"]) == ("preempted", "stopped at once, without a checkpoint")
    assert not any(child.is_running() for child in children)


def test_ranks_end_when_the_launcher_is_killed(tmp_path):
    process = start(tmp_path, *LONG)
    wait_for_step(tmp_path, 2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=100)
    assert not alive


def test_ranks_that_still_import_end_when_the_launcher_is_killed(tmp_path):
    process = start(tmp_path, *LONG)
    parent = psutil.Process(process.pid)
    ends_s = time.monotonic() + 200
    ranks: list[psutil.Process] = []
    while not ranks and time.monotonic() < ends_s:
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = [child for child in parent.children(recursive=True) if "dtk.rank" in child.cmdline()]
    assert ranks
    process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=100)
    assert not alive


@pytest.mark.parametrize("still_there", [True, False])
def test_a_rank_ends_whose_launcher_went_before_it_looked(still_there):
    code = "import sys; from dtk.rank.child import end_with; end_with(int(sys.argv[1])); print('continued')"
    parent = os.getpid() if still_there else 1
    done = subprocess.run(
        [sys.executable, "-c", code, str(parent)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout) == ((0, "continued\n") if still_there else (1, ""))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.extended
def test_killed_at_random_moments_the_run_resumes(tmp_path):
    """SIGKILL to all processes at once, checkpoints at every step: most kills hit one being written.

    In the end every step was made once with the loss of a run that nobody disturbed.
    """
    moments = random.Random(7)
    changes = [*TINY, "train.steps=100000", "checkpoint.every=1", "checkpoint.keep=2", "train.evaluate_every=-1"]
    changes += ["schedule=constant"]
    process = start(tmp_path, *changes)
    folder = wait_for_step(tmp_path, 2)
    for _ in range(20):
        time.sleep(moments.uniform(0.0, 0.6))
        kill_all(process)
        complete = sorted(path.name for path in (folder / "checkpoints").glob("step_*"))
        assert all((folder / "checkpoints" / name / "checkpoint.json").is_file() for name in complete)
        lines = len(metrics_lines(folder))
        process = start(tmp_path, f"resume={folder}")
        wait_for_step(tmp_path, lines + 2)
    kill_all(process)
    step = max(losses(folder))
    final = run(tmp_path, f"resume={folder}", f"train.steps={step + 2}")
    assert final.returncode == 0, final.stdout + final.stderr
    undisturbed = run(tmp_path / "other", *changes, f"train.steps={step + 2}", "checkpoint=off", timeout_s=300)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    assert losses(folder) == losses(only_run(tmp_path / "other"))


@pytest.mark.parametrize(
    "launcher",
    [
        (),
        pytest.param(("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"), marks=pytest.mark.extended),
    ],
)
def test_a_closed_terminal_stops_with_a_checkpoint(launcher, tmp_path):
    """A terminal of its own that goes away, as when an ssh connection drops: hangup, and nowhere to write to."""
    command = [sys.executable, *launcher, "-m", "dtk.run", f"runs_folder={tmp_path}", *LONG]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under nohup.
        os.chdir(ROOT)
        os.execve(sys.executable, command, environment())
    seen = b""
    while b"step 3/" not in seen:
        seen += os.read(terminal, 65536)
    os.close(terminal)
    _, ended = os.waitpid(pid, 0)
    if not launcher:
        assert os.waitstatus_to_exitcode(ended) == 129
    record = status(only_run(tmp_path))
    assert (record["state"], record["exit_code"]) == ("preempted", 129)
    assert RunPaths(only_run(tmp_path)).checkpoint(record["step"]).is_dir()


def kill_all(process) -> None:
    processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for item in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(item.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(processes, timeout=100)
