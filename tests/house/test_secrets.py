"""No secret that the user has in the environment, in overrides, or in URLs gets into what dtk writes or shows."""

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.contract.secrets import MASK
from dtk.config.compose import compose
from dtk.config.resume import rerun
from dtk.config.trust import refuse_masked
from dtk.errors import DtkError
from dtk.launch.remote import kubernetes, slurm
from tests.cli.command import TINY, only_run, run
from tests.unit.launch.remote.jobs import KUBERNETES, SLURM, job

NAMES = """
NCCL_API_KEY TORCH_TOKEN SLURM_JWT DTK_PASSWORD CUDA_CLIENT_SECRET OMP_CREDENTIALS WANDB_API_KEY HF_TOKEN
AWS_SECRET_ACCESS_KEY NCCL_MY_KEY GLOO_AUTH_TOKEN SLURM_DB_PASSWD
"""
ENVIRONMENT = {name: f"hunter{number:02d}" for number, name in enumerate(NAMES.split())}
URLS = {"TORCH_PROXY": "http://me:hunter12@proxy:3128", "SLURM_STORE": "s3://id:hunter13@bucket/x"}
KEY = "hunter14"
OVERRIDES = [
    f"model.arguments.api_key={KEY}",
    f"model.arguments.key_hash={hashlib.sha256(KEY.encode()).hexdigest()}",
    "model.arguments.url='postgres://me:hunter15@db:5432/x?token=hunter16'",
    "model.arguments.db_password=hunter17",
    "model.arguments.nested={client_secret:hunter18,depth:3}",
    "model.arguments.command=[--auth-token,hunter19]",
]


def holders(folder: Path) -> list[str]:
    """Files below a folder that hold one of the hunter values."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and b"hunter" in path.read_bytes()]


def test_twenty_secrets_are_in_no_file_and_on_no_screen(tmp_path: Path) -> None:
    text = "".join([*ENVIRONMENT.values(), *URLS.values(), *OVERRIDES])
    assert len(set(re.findall(r"hunter\d\d", text))) == 20
    tracker = (
        ["tracker=wandb", "tracker.mode=offline"] if importlib.util.find_spec("wandb") else ["tracker=tensorboard"]
    )
    custom = ["model=custom", "model._target_=tests.cli.keyed.Keyed", "model.vocab_size=256", "model.context_length=64"]
    overrides = [*custom, "allow_targets=[tests.cli.keyed.*]", *OVERRIDES, *tracker, "data.max_bytes=300000"]
    done = run(
        tmp_path, *overrides, "data.sequence_length=32", "launcher.nproc=1", "strategy=ddp", **ENVIRONMENT, **URLS
    )
    folder = only_run(tmp_path)
    error = (folder / "logs/attempt_0/rank_00000/stderr.log").read_text()
    assert done.returncode == 1 and "ConnectionError" in error, done.stdout + done.stderr + error
    assert (folder / "report/report.json").is_file() or "ConnectionError" in done.stdout
    assert "hunter" not in done.stdout + done.stderr
    assert holders(tmp_path) == []
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["arguments"]["api_key"] == MASK
    again = rerun(folder, [], None)
    with pytest.raises(DtkError, match=r"model\.arguments\.api_key was masked.*type it again"):
        refuse_masked(again.composed.plain)


def test_what_was_masked_may_be_typed_again() -> None:
    plain = compose([*TINY, "data.max_bytes=1000"]).plain
    refuse_masked(plain)
    with pytest.raises(DtkError, match="runs_folder was masked"):
        refuse_masked({**plain, "runs_folder": f"s3://id:{MASK}@bucket"})


@pytest.mark.parametrize("launcher", [SLURM, KUBERNETES])
@pytest.mark.parametrize(
    "put",
    [
        {"launcher__python": "HF_TOKEN=hunter /usr/bin/python"},
        {"tracker__name": "none", "runs": "s3://me:hunter@bucket/runs"},
    ],
)
def test_a_job_with_a_secret_in_its_files_is_not_submitted(launcher: list[str], put: dict[str, Any]) -> None:
    if launcher is KUBERNETES:
        put = {"launcher__image": "https://me:hunter@registry/image", **{k: v for k, v in put.items() if k == "runs"}}
    with pytest.raises(DtkError, match="holds a secret"):
        job(*launcher, **put)


def test_names_of_kubernetes_secrets_are_no_secrets_and_the_typed_line_is_masked() -> None:
    submission = job(*KUBERNETES, 'launcher.secrets={WANDB_API_KEY:"wandb/api-key"}')
    assert "wandb" in kubernetes.render(submission)
    submission.composed.overrides.append("tracker.api_key=hunter")
    assert "hunter" not in slurm.render(job(*SLURM), "/x") + submission.title() and MASK in submission.title()
