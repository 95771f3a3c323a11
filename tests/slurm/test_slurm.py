"""`dtk run launcher=slurm` on a real Slurm of two nodes: submit, requeue, signal, cancel, refusal, a lost node."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.command import TINY, metrics, only_run, run, status
from tests.slurm.two_nodes import absent, cluster

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(absent()), reason=absent()),
]
JOB = [*TINY, "strategy=ddp", "launcher=slurm", "launcher.nodes=2", "launcher.nproc=1", "checkpoint.every=0"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp("slurm")) as variables:
        # The nodes' names are no hosts that a resolver knows.
        yield {**variables, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def ask(slurm: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **slurm}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(folder: Path, slurm: dict[str, str], *overrides: str) -> tuple[str, Path]:
    done = run(folder, *JOB, *overrides, **slurm)
    assert done.returncode == 0, done.stderr
    match = re.search(r"as job (\d+)", done.stdout)
    assert match, done.stdout
    return match[1], only_run(folder)


def wait_until(condition, timeout_s: float = 150.0) -> None:
    ends_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_s, "it did not come to that"
        time.sleep(0.5)


def log(run_folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((run_folder / "logs").glob("slurm-*.log")))


def begin_now(slurm: dict[str, str], job: str, begun: Callable[[], bool]) -> None:
    """Slurm lets a requeued job wait for two minutes, and may set that time once more while the job completes.

    A job that starts in the second in which its former credential was revoked is killed, which nobody's job does.
    """
    time.sleep(2)

    def has_begun() -> bool:
        if "PENDING" in ask(slurm, "squeue", "--noheader", f"--jobs={job}", "--format=%T"):
            update = ["scontrol", "update", f"JobId={job}", "StartTime=now"]  # Refused if it has begun meanwhile.
            subprocess.run(update, env={"PATH": "/usr/bin:/bin", **slurm}, capture_output=True, check=False)
        return begun()

    wait_until(has_begun)


def steps(run_folder: Path) -> list[int]:
    return [record["step"] for record in metrics(run_folder) if "loss" in record]


def test_a_job_runs_what_was_frozen_and_goes_on_after_a_requeue(slurm, tmp_path):
    job, folder = submit(tmp_path / "runs", slurm, "train.steps=5000")
    wait_until(lambda: "step 20/" in log(folder))
    assert status(folder)["state"] == "running"
    ask(slurm, "scontrol", "requeue", job)
    wait_until(lambda: status(folder)["state"] == "preempted")
    stopped = status(folder)["step"]
    assert (folder / "checkpoints" / f"step_{stopped:08d}" / "checkpoint.json").is_file()
    begin_now(slurm, job, lambda: f"resumed from step_{stopped:08d}" in log(folder))
    # What the script itself does at the time limit: tell the ranks, wait, ask for another turn.
    ask(slurm, "scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: "dtk: stopped with a checkpoint; requeued" in log(folder))
    again = status(folder)["step"]
    assert again >= stopped
    begin_now(slurm, job, lambda: "(attempt 2)" in log(folder))
    ask(slurm, "scancel", job)
    wait_until(lambda: not ask(slurm, "squeue", "--noheader", f"--name={folder.name}"))
    assert status(folder)["state"] == "preempted", "a cancelled job is not requeued"
    assert steps(folder) == list(range(1, len(steps(folder)) + 1)), "no step twice, none left out"


def test_a_job_comes_to_its_end(slurm, tmp_path):
    job, folder = submit(tmp_path / "runs", slurm, "train.steps=3", 'launcher.extra=["--comment=a \\"b\\" $c"]')
    assert 'Comment=a "b" $c' in ask(slurm, "scontrol", "show", "job", job)
    wait_until(lambda: status(folder)["state"] == "finished")
    assert steps(folder) == [1, 2, 3]
    assert len(list((folder / "heartbeat").iterdir())) == 2
    assert len(list((folder / "telemetry").iterdir())) == 2, "one of each node"
    assert "Slurm detected, 2 nodes" in log(folder)


def test_two_jobs_never_share_a_run_folder(slurm, tmp_path):
    hold = 'launcher.extra=["--hold"]'
    job, folder = submit(tmp_path / "runs", slurm, "train.steps=100000", hold)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert status(folder)["state"] == "queued"
    again = (*JOB, "train.steps=100000", hold, f"resume={folder}")
    second = run(tmp_path / "runs", *again, **slurm)
    assert second.returncode == 2 and f"is in Slurm as job {job}" in second.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    ask(slurm, "scontrol", "release", job)
    wait_until(lambda: "step 2/" in log(folder))
    third = run(tmp_path / "runs", *again, **slurm)
    assert third.returncode == 2 and "still running" in third.stderr
    assert status(folder)["state"] == "running"
    ask(slurm, "scancel", job)
    wait_until(lambda: status(folder)["state"] == "preempted")


def test_what_slurm_refuses_leaves_nothing_behind(slurm, tmp_path):
    done = run(tmp_path / "runs", *JOB, "launcher.partition=nowhere", **slurm)
    assert done.returncode == 2
    assert "Slurm refuses the job" in done.stderr and "partition" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_node_that_is_lost_ends_the_job(slurm, tmp_path):
    """Its daemon and all processes of the job on it are gone in one moment; the other node says so and ends."""
    _, folder = submit(tmp_path / "runs", slurm, "train.steps=100000")
    wait_until(lambda: "step 5/" in log(folder))
    lost = psutil.Process(json.loads((folder / "heartbeat" / "rank_00001.json").read_text())["pid"])
    daemon = int((Path(slurm["SLURM_CONF"]).parent / "slurmd_nb.pid").read_text())
    step = next(parent for parent in lost.parents() if parent.name() == "slurmstepd")
    for process in [step, *step.children(recursive=True), psutil.Process(daemon)]:
        process.kill()
    wait_until(lambda: status(folder)["state"] not in ("running", "queued"))
    ended = status(folder)
    assert ended["state"] == "failed"
    assert ended["failure"]["rank"] == 1 and ended["failure"]["victims"] == [0]
