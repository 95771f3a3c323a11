"""Manifests for the training operator: nothing of the user is expanded, and what it would refuse is one line."""

import re
from typing import Any

import pytest
import yaml

from dtk.config.strict import from_plain
from dtk.launch.remote import kubernetes
from tests.unit.launch.remote.jobs import (
    HOSTILE,
    KUBERNETES,
    hostile,
    job,
)


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_a_manifest_expands_nothing_of_the_user(kind):
    submission = hostile(*KUBERNETES, f"launcher.kind={kind}")
    config_map, work = yaml.safe_load_all(kubernetes.render(submission))
    if kind == "TrainJob":
        container = work["spec"]["trainer"]
    else:
        container = work["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    folder = container["command"][container["command"].index("dtk.launch.remote.rank") + 1]
    value = next(item["value"] for item in container["env"] if item["name"] == "NCCL_SOCKET_IFNAME")
    for written, meant in ((folder, str(submission.paths.root)), (value, HOSTILE)):
        assert "$(" not in written.replace("$$", "")
        assert written.replace("$$", "$") == meant
    assert from_plain(yaml.safe_load(config_map["data"]["config.yaml"])) == submission.composed.config


def test_names_are_dns_labels_and_keep_the_random_end():
    submission = job(*KUBERNETES, run_id="20260102-030405-" + "My_Model" * 8 + "-hsdp-w16-ab12")
    name = kubernetes.name_of(submission)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])", name) and name.endswith("-ab12")


def manifest(*overrides: str) -> Any:
    """Return the job of a manifest."""
    return list(yaml.safe_load_all(kubernetes.render(job(*KUBERNETES, *overrides))))[1]


def test_requests_and_limits_are_equal_and_hold_what_was_given() -> None:
    (container,) = manifest()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"] == {
        "cpu": "96",
        "memory": "900Gi",
        "nvidia.com/gpu": "8",
        "rdma/ib": "8",
    }


def test_nothing_given_is_nothing_requested() -> None:
    submission = job("launcher=kubernetes", "launcher.image=x")
    (container,) = list(yaml.safe_load_all(kubernetes.render(submission)))[1]["spec"]["pytorchReplicaSpecs"]["Master"][
        "template"
    ]["spec"]["containers"]
    assert "resources" not in container


def test_one_node_has_no_workers_and_its_runs_may_go_with_the_pod() -> None:
    item = manifest("launcher.nodes=1", "strategy.dp_replicate=1", "launcher.volume_claim=null")
    replicas = item["spec"]["pytorchReplicaSpecs"]
    assert list(replicas) == ["Master"] and replicas["Master"]["replicas"] == 1
    volumes = {volume["name"]: volume for volume in replicas["Master"]["template"]["spec"]["volumes"]}
    assert volumes["dtk-runs"] == {"name": "dtk-runs", "emptyDir": {}}
    assert volumes["dtk-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert manifest()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1


def test_secrets_come_from_the_cluster() -> None:
    (container,) = manifest()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    key = next(variable for variable in container["env"] if variable["name"] == "WANDB_API_KEY")
    assert key["valueFrom"]["secretKeyRef"] == {"name": "wandb", "key": "key"} and "value" not in key


def test_both_kinds_run_the_same_command_but_for_what_the_operator_says_itself() -> None:
    train = manifest("launcher.kind=TrainJob")["spec"]["trainer"]
    (container,) = manifest()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    extra = ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    assert [word for word in container["command"] if word not in extra] == train["command"]
    assert (train["numNodes"], train["numProcPerNode"]) == (2, 8)
    port = manifest("launcher.kind=TrainJob", "launcher.master_port=3000")["spec"]["trainer"]["command"]
    assert "--master-port=3000" in port


def test_a_large_plan_is_left_out_of_the_config_map() -> None:
    submission = job(*KUBERNETES)
    submission.files["plan.json"] = "x" * 1_000_000
    config_map, _ = yaml.safe_load_all(kubernetes.render(submission))
    assert "plan.json" not in config_map["data"] and "config.yaml" in config_map["data"]
