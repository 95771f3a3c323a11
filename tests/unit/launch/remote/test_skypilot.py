"""Task files: the script on the nodes writes exactly what was frozen, whatever is in it."""

import json
from typing import Any

import pytest
import yaml

from dtk.launch.remote import skypilot
from tests.unit.launch.remote.jobs import (
    SKYPILOT,
    hostile,
    in_bash,
    job,
    shellcheck,
)


def test_shellcheck_finds_nothing_in_a_task(tmp_path):
    shellcheck("#!/bin/bash\n" + skypilot.run_script(hostile(*SKYPILOT)), tmp_path)


def test_a_task_puts_down_exactly_what_was_frozen(tmp_path):
    (tmp_path / "torchrun").write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    (tmp_path / "torchrun").chmod(0o755)
    submission = hostile(*SKYPILOT)
    run = yaml.safe_load(skypilot.render(submission))["run"]
    assert run == skypilot.run_script(submission)
    variables = {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    argv = json.loads(in_bash(run, tmp_path, **variables))
    assert argv[:4] == ["--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1"]
    assert str(submission.paths.root) in argv
    (frozen,) = tmp_path.glob("dtk-frozen-*")
    assert {path.name: path.read_text() for path in frozen.iterdir()} == submission.files


def test_no_frozen_text_ends_its_own_file(tmp_path):
    submission = job(*SKYPILOT)
    submission.files["config.yaml"] += "DTK_END_OF_FILE\ntouch owned\n"
    run = skypilot.run_script(submission).rpartition("torchrun")[0]
    in_bash(run, tmp_path)
    assert not (tmp_path / "owned").exists()
    assert next(tmp_path.glob("dtk-frozen-*/config.yaml")).read_text() == submission.files["config.yaml"]


def task(*overrides: str) -> Any:
    return yaml.safe_load(skypilot.render(job(*SKYPILOT, *overrides)))


def test_machines_are_described_as_skypilot_reads_them() -> None:
    assert task()["resources"] == {
        "accelerators": "H100:8",
        "cpus": "96+",
        "memory": "900+",
        "infra": "aws/us-east-1",
        "disk_size": 512,
        "use_spot": True,
    }
    assert task()["num_nodes"] == 2 and task()["file_mounts"]["/runs"]["source"] == "s3://my-runs"


def test_what_is_not_given_is_left_to_skypilot() -> None:
    plain = yaml.safe_load(skypilot.render(job("launcher=skypilot")))
    assert plain["resources"] == {"use_spot": False}
    assert not {"workdir", "file_mounts", "setup"} & plain.keys() and plain["num_nodes"] == 1
    assert task("launcher.workdir=.")["workdir"] == "."


@pytest.mark.parametrize(("port", "expected"), [(0, skypilot.PORT), (3000, 3000)])
def test_the_port_of_the_store(port: int, expected: int) -> None:
    assert f"--master-port={expected} " in task(f"launcher.master_port={port}")["run"]


def test_the_name_holds_only_what_skypilot_accepts() -> None:
    assert skypilot.name_of(job(*SKYPILOT, run_id="2026_a.b-c")) == "dtk-2026-a-b-c"
