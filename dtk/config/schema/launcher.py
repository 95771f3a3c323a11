"""Keys of `launcher`: how the ranks start, on this machine or on others."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherConfig:
    """How the ranks start. Under torchrun or srun the ranks exist already and only join."""

    name: Literal["local", "slurm", "kubernetes", "skypilot"] = "local"
    nproc: int | Literal["auto"] = "auto"
    """Ranks on this machine, or on each node; auto = one per GPU, or 2 on CPU (1 for strategy single and dp)."""
    world_size: int | None = None
    """Ranks over all machines, for `dtk plan` and `dtk preflight`; null = as started. A run with others is refused."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: int | Literal["auto"] = "auto"
    """CPU threads per rank; auto = the cores shared out."""
    max_restarts: int = 0
    """Restarts from the last checkpoint after a failure, in the same run folder."""
    timeout_s: float = 300.0
    """Longest wait in a collective."""
    master_port: int = 0
    """Port of the rendezvous; 0 = a free one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalLauncher(LauncherConfig):
    """Ranks on this machine."""

    oversubscribe: bool = False
    """Start more ranks than the cores and the memory of this machine are enough for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteLauncher(LauncherConfig):
    """What every launcher beyond this machine has: nodes, what each of them gives, how dtk starts there."""

    nodes: int = 1
    """Machines; the job has nodes x nproc ranks."""
    gpus_per_node: int = 0
    """GPUs that each node gives to the job; 0 = a job on CPUs."""
    cpus_per_rank: int | None = None
    """CPU cores for each rank; null = what the cluster gives by itself."""
    memory_per_node: str | None = None
    """Memory of each node for the job: `200G` (slurm), `200Gi` (kubernetes), `200+` GB (skypilot)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmLauncher(RemoteLauncher):
    """A batch job of Slurm. Null leaves a choice to the cluster."""

    name: Literal["slurm"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int | str | None = None
    """Time limit: minutes, or Slurm's `hours:minutes:seconds` or `days-hours`."""
    requeue: bool = True
    """Go on in the same run folder after a preemption and at the time limit."""
    signal_before_s: int = 180
    """Seconds before the time limit at which the ranks write a checkpoint."""
    extra: list[str] = field(default_factory=list)
    """More options for sbatch, one per entry: `--constraint=h100`."""
    srun_extra: list[str] = field(default_factory=list)
    """More options for srun, one per entry: `--cpu-bind=cores`, `--container-image=...`."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before dtk starts: `module load cuda`."""
    python: str | None = None
    """Python on the nodes; null = the one that submits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesLauncher(RemoteLauncher):
    """A job for the Kubeflow training operator."""

    name: Literal["kubernetes"] = "kubernetes"
    kind: Literal["PyTorchJob", "TrainJob"] = "PyTorchJob"
    """PyTorchJob = training operator v1; TrainJob = Kubeflow Trainer v2."""
    image: str
    """Container image with dtk in it."""
    namespace: str | None = None
    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of a TrainJob."""
    volume_claim: str | None = None
    """PersistentVolumeClaim for run folders, mounted at `volume_path`; null = none, and run folders go with the pod."""
    volume_path: str = "/runs"
    """Where the claim is mounted. Give `runs_folder` below it."""
    shared_memory: str | None = None
    """Size limit of /dev/shm; null = as the memory of the pod allows."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the resource that a GPU is."""
    resources: dict[str, str] = field(default_factory=dict)
    """More resources of each pod, as requests and limits alike: `rdma/ib: "8"`."""
    node_selector: dict[str, str] = field(default_factory=dict)
    service_account: str | None = None
    image_pull_secrets: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """Variables from Secrets, as `SECRET/KEY`: `WANDB_API_KEY: wandb/api-key`."""
    grace_period_s: int | None = 120
    """Between the request to stop and the end of the pod: time for a checkpoint. null = the cluster's; a TrainJob of
    Kubeflow Trainer before 2.3 knows no other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkypilotLauncher(RemoteLauncher):
    """A task file for SkyPilot, on whichever cloud has the machines."""

    name: Literal["skypilot"] = "skypilot"
    accelerator: str | None = None
    """GPU as SkyPilot names it: `H100`. Needed when gpus_per_node is not 0."""
    cloud: str | None = None
    """`aws`, `gcp`, `kubernetes`, ...; null = the cheapest."""
    region: str | None = None
    use_spot: bool = False
    """Machines that may be taken away; `sky jobs launch` gets others and the run goes on."""
    image: str | None = None
    """Machine image or `docker:IMAGE`; null = SkyPilot's own."""
    disk_gb: int | None = None
    """Disk of each node, in GB."""
    bucket: str | None = None
    """Where run folders are kept, mounted at `bucket_path`: `s3://my-bucket`. null = the disk of the first node."""
    bucket_path: str = "/runs"
    """Where the bucket is mounted. Give `runs_folder` below it."""
    workdir: str | None = None
    """Folder that is copied to every node, where the job starts; null = none."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell, run once on every node: `pip install dtk-train[train]`."""
