"""The same command under torchrun: rank 0 composes, all train, one run folder."""

import json

import pytest

from tests.cli.command import FAULTY, TINY, metrics, only_run, run, start, status
from tests.dist.ranks import free_port

SHORT = [*TINY, "train.steps=5", "train.global_batch_size=8", "train.micro_batch_size=2"]


def torchrun(*arguments: str) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", *arguments)


def losses(folder):
    return [record["loss"] for record in metrics(folder) if "loss" in record]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.extended)])
def test_torchrun_gives_what_the_local_launcher_gives(ranks, tmp_path):
    local = run(tmp_path / "local", *SHORT)
    assert local.returncode == 0, local.stderr
    folder = tmp_path / "torchrun"
    process = run(folder, *SHORT, launcher=torchrun("--standalone", f"--nproc-per-node={ranks}"), OMP_NUM_THREADS="1")
    assert process.returncode == 0, process.stdout + process.stderr
    run_folder = only_run(folder)
    assert status(run_folder)["state"] == "finished"
    assert f"-w{ranks}-" in run_folder.name
    assert losses(run_folder) == pytest.approx(losses(only_run(tmp_path / "local")), abs=1e-4)
    assert len(list((run_folder / "heartbeat").iterdir())) == ranks


@pytest.mark.timeout(150)
def test_two_nodes_on_loopback(tmp_path):
    port = free_port()
    nodes = [
        start(
            tmp_path,
            *(*SHORT, "strategy=hsdp"),
            launcher=torchrun(
                *("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--rdzv-backend=static"),
                *(f"--rdzv-endpoint=127.0.0.1:{port}", "--master-addr=127.0.0.1", f"--master-port={port}"),
            ),
            OMP_NUM_THREADS="1",
        )
        for node in range(2)
    ]
    outputs = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    folder = only_run(tmp_path)
    assert "-hsdp-w4-" in folder.name
    assert status(folder)["state"] == "finished"
    assert len(list((folder / "heartbeat").iterdir())) == 4
    assert len(list((folder / "telemetry").iterdir())) == 2
    assert len(list((folder / "logs" / "attempt_0").iterdir())) == 4
    assert outputs[0][0].splitlines()[-1].endswith(f"dtk show {folder}")
    assert "4 on cpu over gloo, 1 CPU thread each; torchrun detected, 2 nodes;" in outputs[0][0]


THREADS = """
import os, torch
from tests.cli.faulty import Faulty

class Counting(Faulty):
    def __init__(self, folder):
        super().__init__("none", forward=1000)
        if "RANK" in os.environ:
            open(f"{folder}/{os.environ['RANK']}", "w").write(str(torch.get_num_threads()))
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("typed", "threads"),
    [pytest.param("launcher.threads=3", "3", marks=pytest.mark.extended), ("launcher.threads=auto", "1")],
)
def test_threads_are_those_that_were_asked_for_or_torchruns(typed, threads, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "counting.py").write_text(THREADS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    changes = ["model._target_=counting.Counting", f"model.arguments.folder={tmp_path}", "train.steps=1", typed]
    allow = "allow_targets=[counting.*]"
    process = run(tmp_path / "runs", *FAULTY, *changes, allow, launcher=torchrun("--standalone", "--nproc-per-node=2"))
    assert process.returncode == 0, process.stdout + process.stderr
    assert [(tmp_path / rank).read_text() for rank in ("0", "1")] == [threads, threads]
    assert f"{threads} CPU thread{'s' * (threads != '1')} each; torchrun detected, 1 node;" in process.stdout


@pytest.mark.extended
@pytest.mark.timeout(100)
def test_a_wrong_override_ends_all_ranks_with_one_line(tmp_path):
    process = run(tmp_path, "strategy=fsd", launcher=torchrun("--standalone", "--nproc-per-node=2"))
    assert process.returncode != 0
    ours = [line for line in process.stderr.splitlines() if line.startswith("dtk: ")]
    assert len(ours) == 1
    assert "strategy=fsdp" in ours[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(120)
def test_the_failing_rank_is_named(tmp_path):
    process = run(
        tmp_path,
        *FAULTY,
        "+model.arguments.fault=raise",
        launcher=torchrun("--standalone", "--nproc-per-node=2"),
        OMP_NUM_THREADS="1",
    )
    assert process.returncode != 0
    record = status(only_run(tmp_path))
    assert record["state"] == "failed"
    assert record["failure"]["rank"] == 1
    assert record["failure"]["reason"].startswith("ValueError: bad batch")


@pytest.mark.timeout(120)
def test_srun_ranks_join_by_themselves(tmp_path):
    """Two processes with the variables that srun gives its tasks; no scheduler is needed for that."""
    shared = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    tasks = [start(tmp_path, *SHORT, **shared, SLURM_PROCID=str(task), SLURM_LOCALID=str(task)) for task in range(2)]
    outputs = [task.communicate(timeout=100) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    folder = only_run(tmp_path)
    assert status(folder)["state"] == "finished"
    assert json.loads((folder / "manifest.json").read_text())["launcher"] == "slurm"


@pytest.mark.extended
@pytest.mark.timeout(150)
def test_torchruns_own_restart_goes_on_in_the_same_folder(tmp_path):
    process = run(
        tmp_path,
        *FAULTY,
        "+model.arguments.fault=SIGKILL",
        "+model.arguments.forward=8",
        "checkpoint=default",
        "checkpoint.every=5",
        "checkpoint.asynchronous=false",
        "train.steps=12",
        launcher=torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=1"),
        OMP_NUM_THREADS="1",
        timeout_s=140,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    record = status(only_run(tmp_path))
    assert (record["state"], record["step"]) == ("finished", 12)
    assert "resumed from step_00000005" in process.stdout


@pytest.mark.timeout(120)
def test_a_killed_rank_is_named_not_its_peer(tmp_path):
    process = run(
        tmp_path,
        *FAULTY,
        "+model.arguments.fault=SIGKILL",
        launcher=torchrun("--standalone", "--nproc-per-node=2"),
        OMP_NUM_THREADS="1",
    )
    assert process.returncode != 0
    failure = status(only_run(tmp_path))["failure"]
    assert failure["rank"] == 1
    assert failure["victims"] == [0]
    assert (only_run(tmp_path) / failure["log"]).is_file()
    assert "rank 1 failed first" in process.stdout
