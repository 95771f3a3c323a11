"""The manifest of a job for the Kubeflow training operator. Knows its words; talks to no cluster.
One document holds the frozen run (a ConfigMap), one the job; torchrun starts the ranks of each pod.
"""

import re
from typing import Any

from dtk.config.schema import KubernetesLauncher
from dtk.console.script_text import as_yaml, check_variable, kubernetes_argument
from dtk.errors import DtkError
from dtk.launch.remote.submission import RANK, Submission

FROZEN = "/etc/dtk/run"  # Where the frozen run is mounted.
PORT = 23456  # Of the store, unless `launcher.master_port` names another; the operator tells it to all pods.
_TRAINER = "trainer.kubeflow.org/v1alpha1"
_CONFIG_MAP_BYTES = 1_000_000  # What a ConfigMap holds, less some room.
_NAME_LENGTH = 46  # Of the job: the operator makes names of pods and services from it, which have 63.
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|Ki|m)?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def render(job: Submission) -> str:
    """Both documents.

    Raises:
        DtkError: what Kubernetes would refuse, or pods that could not share a run folder.
    """
    launcher: KubernetesLauncher = job.launcher
    _check(launcher)
    frozen = dict(job.files)
    if sum(len(text.encode()) for text in frozen.values()) > _CONFIG_MAP_BYTES:
        frozen.pop(job.paths.plan.name, None)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job), "data": frozen}
    version, spec = ("kubeflow.org/v1", _pytorch_job) if launcher.kind == "PyTorchJob" else (_TRAINER, _train_job)
    head = {"apiVersion": version, "kind": launcher.kind, "metadata": _metadata(job)}
    return as_yaml(config_map, {**head, "spec": spec(job)})


def name_of(job: Submission) -> str:
    """Return a DNS label made of the beginning of the run's id, which may be cut, and its random end."""
    name = re.sub(r"[^a-z0-9]+", "-", job.paths.root.name.lower()).strip("-")
    head, _, tail = name.rpartition("-")
    return f"dtk-{head[: _NAME_LENGTH - len(tail) - 5].strip('-')}-{tail}"


def _check(launcher: KubernetesLauncher) -> None:
    if launcher.nodes > 1 and launcher.volume_claim is None:
        what, why = f"launcher.nodes={launcher.nodes} needs launcher.volume_claim", "the pods write one run folder"
        raise DtkError(what, why, "name a PersistentVolumeClaim that many pods may write: launcher.volume_claim=NAME")
    quantities = {key: getattr(launcher, key) for key in ("memory_per_node", "shared_memory")}
    quantities |= {f"resources.{key}": value for key, value in launcher.resources.items()}
    for key, value in quantities.items():
        if value is not None and not _QUANTITY.fullmatch(value):
            raise DtkError(f"launcher.{key}={value} is no quantity", fix=f"use a number, or launcher.{key}=200Gi")
    for name, secret in launcher.secrets.items():
        check_variable(name, "launcher.secrets")
        if secret.count("/") != 1 or not all(secret.split("/")):
            raise DtkError(f"launcher.secrets.{name}={secret} names no key", fix="write SECRET/KEY")
    if not launcher.volume_path.startswith("/"):
        what = f"launcher.volume_path={launcher.volume_path} is not absolute"
        raise DtkError(what, fix="use launcher.volume_path=/runs")


def _metadata(job: Submission) -> dict[str, Any]:
    namespace = job.launcher.namespace
    labels = {"app.kubernetes.io/name": "dtk", "app.kubernetes.io/managed-by": "dtk"}
    if _LABEL.fullmatch(job.paths.root.name):
        labels["dtk/run"] = job.paths.root.name
    about = {"dtk/command": job.title(), "dtk/run-folder": str(job.paths.root)}
    head = {"name": name_of(job)} | ({"namespace": namespace} if namespace else {})
    return {**head, "labels": labels, "annotations": about}


def _command(job: Submission) -> list[str]:
    """Return the command that a pod runs; the operator supplies the address of the first pod and the pod's rank."""
    launcher: KubernetesLauncher = job.launcher
    here = []
    if launcher.kind == "PyTorchJob":  # There in all versions; torchrun's own PET_ names are not.
        here = ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    elif launcher.master_port:
        here = [f"--master-port={launcher.master_port}"]
    counts = [f"--nnodes={launcher.nodes}", f"--nproc-per-node={job.placement.nproc}"]
    rank = ["-m", RANK, kubernetes_argument(job.paths.root), f"--frozen={FROZEN}"]
    return ["torchrun", *counts, *here, f"--max-restarts={launcher.max_restarts}", *rank]


def _variables(job: Submission) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": name, "value": kubernetes_argument(value)} for name, value in job.variables().items()
    ]
    for name, text in job.launcher.secrets.items():
        secret, key = text.split("/")
        variables.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return variables


def _resources(job: Submission) -> dict[str, Any]:
    """Return equal requests and limits, as a training job that shares its cores or memory becomes a straggler."""
    launcher: KubernetesLauncher = job.launcher
    wanted = {
        "cpu": str((launcher.cpus_per_rank or 0) * job.placement.nproc),
        "memory": launcher.memory_per_node,
        launcher.gpu_resource: str(launcher.gpus_per_node),
    }
    resources = {key: value for key, value in wanted.items() if value and value != "0"} | launcher.resources
    return {"requests": resources, "limits": dict(resources)} if resources else {}


def _volumes(job: Submission) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of a pod and where its container has them: the frozen run, shared memory, run folders."""
    launcher: KubernetesLauncher = job.launcher
    memory = {"medium": "Memory"} | ({"sizeLimit": launcher.shared_memory} if launcher.shared_memory else {})
    claim = launcher.volume_claim
    runs: dict[str, Any] = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    # What data loaders and NCCL share between processes lies in dtk-shm; a container has 64 MB of it by itself.
    table: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "dtk-run": ({"configMap": {"name": name_of(job)}}, {"mountPath": FROZEN, "readOnly": True}),
        "dtk-shm": ({"emptyDir": memory}, {"mountPath": "/dev/shm"}),
        "dtk-runs": (runs, {"mountPath": launcher.volume_path}),
    }
    volumes = [{"name": name, **volume} for name, (volume, _) in table.items()]
    return volumes, [{"name": name, **mount} for name, (_, mount) in table.items()]


def _pod(job: Submission) -> dict[str, Any]:
    """Return the fields that a pod of either kind has besides its container."""
    launcher: KubernetesLauncher = job.launcher
    pod = {
        "terminationGracePeriodSeconds": launcher.grace_period_s,
        "nodeSelector": dict(launcher.node_selector) or None,
        "serviceAccountName": launcher.service_account or None,
        "imagePullSecrets": [{"name": name} for name in launcher.image_pull_secrets] or None,
    }
    return {key: value for key, value in pod.items() if value is not None}


def _pytorch_job(job: Submission) -> dict[str, Any]:
    launcher: KubernetesLauncher = job.launcher
    volumes, mounts = _volumes(job)
    container = {
        **{"name": "pytorch", "image": launcher.image},  # The operator looks for this name.
        **{"command": _command(job), "env": _variables(job)},
        "ports": [{"name": "pytorchjob-port", "containerPort": launcher.master_port or PORT}],
        **{"resources": _resources(job), "volumeMounts": mounts},
    }
    container = {key: value for key, value in container.items() if value}
    pod = {**_pod(job), "containers": [container], "volumes": volumes}
    template = {"metadata": {"labels": _metadata(job)["labels"]}, "spec": pod}
    specs = {
        role: {"replicas": number, "restartPolicy": "OnFailure", "template": template}
        for role, number in (("Master", 1), ("Worker", launcher.nodes - 1))
        if number
    }
    policy = {"cleanPodPolicy": "None", "backoffLimit": launcher.max_restarts}
    return {"runPolicy": policy, "pytorchReplicaSpecs": specs}


def _train_job(job: Submission) -> dict[str, Any]:
    launcher: KubernetesLauncher = job.launcher
    volumes, mounts = _volumes(job)
    trainer = {
        "image": launcher.image,
        "command": _command(job),
        "env": _variables(job),
        "numNodes": launcher.nodes,
        "numProcPerNode": job.placement.nproc,
        "resourcesPerNode": _resources(job),
    }
    pod = {**_pod(job), "containers": [{"name": "node", "volumeMounts": mounts}], "volumes": volumes}
    patch = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patches = {"template": {"spec": {"replicatedJobs": [patch]}}}
    return {
        "runtimeRef": {"name": launcher.runtime},
        "trainer": {key: value for key, value in trainer.items() if value},
        "runtimePatches": [{"manager": "dtk/run", "trainingRuntimeSpec": patches}],
    }
