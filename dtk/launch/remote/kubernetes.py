"""The manifest of a job for the Kubeflow training operator. Contacts no cluster. One document holds the frozen run (a
ConfigMap), the other the job; torchrun starts the ranks of each pod.
"""

import re
from typing import Any

from diagnostics.contract.files import table_beside
from dtk.config.schema import KubernetesLauncher
from dtk.console.script_text import as_yaml, check_form, kubernetes_argument
from dtk.errors import Errors
from dtk.launch.remote.submission import RANK, Submission

_errors = Errors(__file__)
FROZEN = "/etc/dtk/run"  # Mount path of the frozen run.
PORT = 23456  # Default of the training operator for PyTorchJob, unless `launcher.master_port` is set.
_CONFIG_MAP_BYTES = 1_000_000  # A ConfigMap holds 1 MiB at most; the rest is for its metadata.
_NAME_LENGTH = 46  # Limit of the job's name: the operator derives pod and service names from it, which have at most 63.
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|Ki|m)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def render(job: Submission) -> str:
    """Return both documents; DtkError if Kubernetes would reject the job, or its pods could not share a run folder."""
    launcher: KubernetesLauncher = job.launcher
    _errors.refuse({"no_claim": launcher.nodes > 1 and launcher.volume_claim is None}, nodes=launcher.nodes)
    quantities = {key: getattr(launcher, key) for key in ("memory_per_node", "shared_memory")}
    quantities |= {f"resources.{key}": value for key, value in launcher.resources.items()}
    for key, value in quantities.items():
        if value is not None:
            check_form(value, _QUANTITY, f"launcher.{key}", "a quantity", f"a number, or launcher.{key}=200Gi")
    for name, secret in launcher.secrets.items():
        check_form(name, _NAME, "launcher.secrets", "the name of a variable", "letters, digits and _ only")
        has_key = secret.count("/") == 1 and all(secret.split("/"))
        _errors.refuse({"no_key": not has_key}, name=name, secret=secret)
    _errors.refuse({"relative": not launcher.volume_path.startswith("/")}, path=launcher.volume_path)
    frozen = dict(job.files)
    if sum(len(text.encode()) for text in frozen.values()) > _CONFIG_MAP_BYTES:
        frozen.pop(job.paths.plan.name, None)
    table, values = table_beside(__file__), {**_values(job), "frozen": frozen}
    config_map, document = (_filled(table[name], values) for name in ("config_map", launcher.kind))
    if launcher.kind == "PyTorchJob" and launcher.nodes > 1:
        replicas = document["spec"]["pytorchReplicaSpecs"]
        replicas["Worker"] = {**replicas["Master"], "replicas": launcher.nodes - 1}
    return as_yaml(config_map, document)


def _filled(node: Any, values: dict[str, Any]) -> Any:
    """Replace placeholders that begin with $ by values, and remove keys whose value is None."""
    if isinstance(node, dict):
        items = {key: _filled(item, values) for key, item in node.items()}
        return {key: item for key, item in items.items() if item is not None}
    if isinstance(node, list):
        return [_filled(item, values) for item in node]
    return values[node[1:]] if isinstance(node, str) and node.startswith("$") else node


def _values(job: Submission) -> dict[str, Any]:
    """Return the placeholder values of `kubernetes.yaml`; None removes the key."""
    launcher: KubernetesLauncher = job.launcher
    labels = {"app.kubernetes.io/name": "dtk", "app.kubernetes.io/managed-by": "dtk"}
    if _LABEL.fullmatch(job.paths.root.name):
        labels["dtk/run"] = job.paths.root.name
    variables: list[dict[str, Any]] = [
        {"name": name, "value": kubernetes_argument(value)} for name, value in job.variables().items()
    ]
    for name, text in launcher.secrets.items():
        secret, key = text.split("/")
        variables.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    keys = ("grace_period_s", "image", "runtime", "nodes", "max_restarts", "volume_path")
    optional = ("namespace", "service_account", "shared_memory")
    return {
        **{key: getattr(launcher, key) for key in keys},
        **{key: getattr(launcher, key) or None for key in optional},
        "name": name_of(job),
        "labels": labels,
        "annotations": {"dtk/command": job.title(), "dtk/run-folder": str(job.paths.root)},
        "frozen_at": FROZEN,
        "claim": {"claimName": launcher.volume_claim} if launcher.volume_claim else None,
        "no_claim": None if launcher.volume_claim else {},
        "node_selector": dict(launcher.node_selector) or None,
        "pull_secrets": [{"name": name} for name in launcher.image_pull_secrets] or None,
        "command": _command(job),
        "variables": variables or None,
        "port": launcher.master_port or PORT,
        "resources": _resources(job) or None,
        "nproc": job.placement.nproc,
    }


def name_of(job: Submission) -> str:
    """Return a DNS label from the start of the run's id, truncated if necessary, and its random end."""
    name = re.sub(r"[^a-z0-9]+", "-", job.paths.root.name.lower()).strip("-")
    head, _, tail = name.rpartition("-")
    return f"dtk-{head[: _NAME_LENGTH - len(tail) - 5].strip('-')}-{tail}"


def _command(job: Submission) -> list[str]:
    """Return the command of a pod; the operator supplies the address of the first pod and the pod's rank."""
    launcher: KubernetesLauncher = job.launcher
    rendezvous = []
    if launcher.kind == "PyTorchJob":  # Available in all versions, unlike torchrun's PET_ variables.
        rendezvous = ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    elif launcher.master_port:
        rendezvous = [f"--master-port={launcher.master_port}"]
    counts = [f"--nnodes={launcher.nodes}", f"--nproc-per-node={job.placement.nproc}"]
    rank = ["-m", RANK, kubernetes_argument(job.paths.root), f"--frozen={FROZEN}"]
    return ["torchrun", *counts, *rendezvous, f"--max-restarts={launcher.max_restarts}", *rank]


def _resources(job: Submission) -> dict[str, Any]:
    """Return equal requests and limits, as a training job that shares cores or memory becomes a straggler."""
    launcher: KubernetesLauncher = job.launcher
    requested = {
        "cpu": str((launcher.cpus_per_rank or 0) * job.placement.nproc),
        "memory": launcher.memory_per_node,
        launcher.gpu_resource: str(launcher.gpus_per_node),
    }
    resources = {key: value for key, value in requested.items() if value and value != "0"} | launcher.resources
    return {"requests": resources, "limits": dict(resources)} if resources else {}
