"""What is frozen of a run, and the ranks of the job."""

import json

import pytest
import yaml

from dtk.config.placement import Placement, remote_placement
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.launch.remote import kubernetes, skypilot
from tests.unit.launch.remote.jobs import (
    HSDP,
    JOBS,
    KUBERNETES,
    SKYPILOT,
    job,
)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["launcher=slurm", "launcher.gpus_per_node=8", "launcher.nproc=16"], "more than launcher.gpus_per_node=8"),
        (["launcher=slurm", "launcher.gpus_per_node=8", "launcher.nproc=4"], "leaves 4 GPUs of each node idle"),
        (["launcher=slurm", "launcher.device=cuda"], "launcher.gpus_per_node=0"),
        (["launcher=slurm", "launcher.backend=nccl"], "needs a GPU"),
        (["launcher=slurm", "launcher.nodes=0"], "out of range"),
        (["launcher=slurm", "launcher.nodes=2", "strategy=single"], "one process"),
        (["launcher=slurm", "launcher.nodez=2"], "did you mean launcher.nodes"),
        (["launcher=kubernetes"], "launcher.image is required"),
        (["launcher.nodes=2"], "belongs to launcher=slurm"),
    ],
)
def test_impossible_jobs_are_one_line(overrides, text):
    with pytest.raises(DtkError, match=text):
        job(*overrides)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["launcher=kubernetes", "launcher.image=x", "launcher.nodes=2"], "volume_claim"),
        ([*KUBERNETES, "launcher.memory_per_node=lots"], "not a quantity"),
        ([*KUBERNETES, "launcher.secrets={A: b}"], "SECRET/KEY"),
        ([*KUBERNETES, "launcher.volume_path=runs"], "not absolute"),
        (["launcher=skypilot", "launcher.gpus_per_node=8"], "launcher.accelerator"),
        (["launcher=skypilot", "launcher.nodes=2"], "launcher.bucket"),
        (["launcher=skypilot", "launcher.use_spot=true"], "launcher.bucket"),
        ([*SKYPILOT, "launcher.cloud=null"], "needs a cloud"),
    ],
)
def test_what_a_cluster_would_refuse_is_one_line(overrides, text):
    submission = job(*overrides)
    with pytest.raises(DtkError, match=text):
        (kubernetes if submission.launcher.name == "kubernetes" else skypilot).render(submission)


def test_the_ranks_of_a_job():
    assert remote_placement(job("launcher=slurm", *HSDP).composed.config) == Placement(8, 16, "cuda", "nccl", 0, 8, ())
    assert remote_placement(job("launcher=slurm").composed.config).nproc == 2, "as on a laptop without a GPU"
    assert remote_placement(job("launcher=slurm", "strategy=single").composed.config).nproc == 1


@pytest.mark.parametrize("name", JOBS)
def test_what_is_frozen_is_what_was_composed(name):
    submission = job(*JOBS[name])
    assert from_plain(yaml.safe_load(submission.files["config.yaml"])) == submission.composed.config
    assert yaml.safe_load(submission.files["overrides.yaml"]) == submission.composed.overrides
    manifest = json.loads(submission.files["manifest.json"])
    assert manifest["submitted"]["launcher"] == submission.launcher.name and "hardware" not in manifest
