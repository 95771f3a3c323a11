"""Keys of `launcher`: how the ranks start, on this machine or on others."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherConfig:
    """How the ranks start. Under torchrun or srun the ranks already exist and only join."""

    name: Literal["local", "slurm", "kubernetes", "skypilot"] = "local"
    nproc: int | Literal["auto"] = "auto"
    world_size: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: int | Literal["auto"] = "auto"
    max_restarts: int = 0
    timeout_s: float = 300.0
    master_port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalLauncher(LauncherConfig):
    """Ranks on this machine."""

    oversubscribe: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteLauncher(LauncherConfig):
    """Keys of every remote launcher: nodes, their resources, and how dtk starts on them."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_rank: int | None = None
    memory_per_node: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmLauncher(RemoteLauncher):
    """A Slurm batch job. Null leaves a choice to the cluster."""

    name: Literal["slurm"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int | str | None = None
    requeue: bool = True
    signal_before_s: int = 180
    extra: list[str] = field(default_factory=list)
    srun_extra: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    python: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesLauncher(RemoteLauncher):
    """A job for the Kubeflow training operator."""

    name: Literal["kubernetes"] = "kubernetes"
    kind: Literal["PyTorchJob", "TrainJob"] = "PyTorchJob"
    image: str
    namespace: str | None = None
    runtime: str = "torch-distributed"
    volume_claim: str | None = None
    volume_path: str = "/runs"
    shared_memory: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    resources: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    service_account: str | None = None
    image_pull_secrets: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    grace_period_s: int | None = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class SkypilotLauncher(RemoteLauncher):
    """A task file for SkyPilot, on any cloud that has the machines."""

    name: Literal["skypilot"] = "skypilot"
    accelerator: str | None = None
    cloud: str | None = None
    region: str | None = None
    use_spot: bool = False
    image: str | None = None
    disk_gb: int | None = None
    bucket: str | None = None
    bucket_path: str = "/runs"
    workdir: str | None = None
    setup: list[str] = field(default_factory=list)
