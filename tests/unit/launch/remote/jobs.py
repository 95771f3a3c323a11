"""Jobs to render: composed as a user would, with everything that changes from day to day fixed."""

import dataclasses
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.batch import settle
from dtk.config.compose import compose
from dtk.config.placement import remote_placement
from dtk.config.strict import from_plain
from dtk.launch.remote.submission import Submission, freeze

RUN_ID = "20260102-030405-gpt2_tiny-hsdp-w16-ab12"
ABOUT = {
    "schema_version": 1,
    "run_id": RUN_ID,
    "created": "2026-01-02T03:04:05+00:00",
    "argv": ["dtk", "run"],
    "cwd": "/home/user/work",
    "host": "login",
    "git": None,
    "hardware": {"left": "out"},
}
TINY = ["model=gpt2_tiny", "nccl.variables={NCCL_DEBUG: WARN}", "train.global_batch_size=32"]


_composed = cache(lambda *overrides: compose([*TINY, *overrides]))


def job(*overrides: str, runs: str = "/runs", run_id: str = RUN_ID, **put: Any) -> Submission:
    """One submission. `put` are keys (`launcher__extra`) set to what Hydra's grammar would not let through."""
    composed = _composed(*overrides)
    plain = {**composed.plain, "runs_folder": runs}
    for key, value in put.items():
        section, _, name = key.partition("__")
        plain[section] = {**plain[section], name: value}
    composed = dataclasses.replace(composed, config=from_plain(plain))
    placement = remote_placement(composed.config)
    composed = settle(composed, placement.world_size)
    return freeze(composed, RunPaths(Path(runs) / run_id), placement, 0, ABOUT)


MESH = ["strategy=hsdp", "strategy.dp_replicate=2", "strategy.dp_shard=8"]
HSDP = [*MESH, "launcher.nodes=2", "launcher.gpus_per_node=8"]
SLURM = [
    "launcher=slurm",
    *HSDP,
    "launcher.cpus_per_rank=12",
    "launcher.memory_per_node=900G",
    "launcher.partition=gpu",
    "launcher.account=lab",
    "launcher.qos=high",
    "launcher.time=8:00:00",
    'launcher.extra=["--constraint=h100"]',
    'launcher.srun_extra=["--cpu-bind=cores"]',
    'launcher.setup=["module load cuda"]',
    "launcher.python=/opt/venv/bin/python",
    "launcher.max_restarts=1",
]
KUBERNETES = [
    "launcher=kubernetes",
    *HSDP,
    "launcher.image=registry.example/dtk:1",
    "launcher.volume_claim=runs",
    "launcher.cpus_per_rank=12",
    "launcher.memory_per_node=900Gi",
    "launcher.shared_memory=64Gi",
    "launcher.namespace=lab",
    'launcher.resources={rdma/ib: "8"}',
    "launcher.node_selector={gpu: h100}",
    "launcher.service_account=trainer",
    "launcher.image_pull_secrets=[registry]",
    "launcher.secrets={WANDB_API_KEY: wandb/key}",
    "launcher.max_restarts=3",
]
SKYPILOT = [
    "launcher=skypilot",
    *HSDP,
    "launcher.accelerator=H100",
    "launcher.cpus_per_rank=12",
    'launcher.memory_per_node="900+"',
    "launcher.cloud=aws",
    "launcher.region=us-east-1",
    "launcher.use_spot=true",
    "launcher.disk_gb=512",
    'launcher.bucket="s3://my-runs"',
    "launcher.setup=[\"pip install 'dtk-train[train]'\"]",
]
JOBS = {
    "slurm": SLURM,
    "pytorchjob": KUBERNETES,
    "trainjob": [*KUBERNETES, "launcher.kind=TrainJob"],
    "skypilot": SKYPILOT,
}
"""Name of the golden file -> overrides."""
HOSTILE = "$(touch /tmp/owned) `id` \"; rm -rf x; ' #{${HOME}} %j \\ &|<>*"
"""Text that every reader on the way would like to do something with."""


def hostile(*overrides: str, **put: Any) -> Submission:
    """Return a submission whose folder and variables hold what a shell would like to do something with."""
    variables = {"NCCL_SOCKET_IFNAME": HOSTILE}
    return job(*overrides, runs="/shared/it's $HOME `x` %j;$(id)", nccl__variables=variables, **put)


def shellcheck(script: str, tmp_path: Path) -> None:
    """Let shellcheck read a script, where it is installed."""
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "script.sh"
    path.write_text(script, encoding="utf-8")
    # What is in single quotes is to be expanded by nobody.
    done = subprocess.run(
        [program, "--shell=bash", "--exclude=SC2016", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def in_bash(script: str, tmp_path: Path, **variables: str) -> str:
    """Run a script and return its output."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **variables}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
