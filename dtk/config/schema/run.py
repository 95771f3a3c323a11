"""Keys of the run itself: training, checkpoints, recording, tracker, NCCL."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Batch, length and what happens around a step."""

    steps: int = 15
    """Optimizer steps in the whole run."""
    epochs: float | None = None
    """Passes over the training samples; sets `steps`, rounded up to whole steps."""
    global_batch_size: int = 8
    """Samples per optimizer step over all ranks. Accumulation is derived from it."""
    micro_batch_size: int = 0
    """Samples per forward and backward on one rank; 0 = the largest that divides, at most 4."""
    clip_norm: float | None = 1.0
    """Largest global gradient norm; null = no clipping."""
    log_every: int = 1
    """Steps between records in metrics.jsonl. Other steps never wait for the device."""
    evaluate_every: int = 0
    """Steps between evaluations on the held-out split; 0 = only after the last step; -1 = never."""
    evaluate_samples: int | None = 32
    """Held-out samples per evaluation over all ranks; null = all."""
    activation_checkpoint_every: int = 0
    """Recompute activations in backward: 0 = none, 1 = every block (full), k = every k-th block."""
    compile: bool = False
    """torch.compile each block."""
    deterministic: bool = False
    """Refuse operations that are not deterministic."""
    garbage_collect_every: int = 50
    """Steps between Python garbage collections, so that ranks pause together; 0 = leave it to Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """What a batch means: the loss and the metrics."""

    name: Literal["auto", "language_modeling", "classification", "image_classification", "regression"] = "auto"
    """auto = classification where the data has classes, else language_modeling."""
    _target_: str | None = None
    """Instead of a name: import path of a class of your own on `dtk.tasks.base.Task`; allow it by `allow_targets`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of its constructor, checked against its signature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallbackConfig:
    """Code of your own at fixed points of a run, named by import path: a class on `dtk.train.callbacks.Callback`."""

    _target_: str
    """Import path of the class; allow it by `allow_targets`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor, checked against its signature."""
    keep_going: bool = False
    """Report what it raises, once, and go on training; false = it fails the run as any other error does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints of model, optimizer and step (torch.distributed.checkpoint)."""

    every: int = 500
    """Steps between checkpoints; 0 = none on the way."""
    at_end: bool = True
    """One after the last step."""
    keep: int = 2
    """Complete checkpoints kept; older ones are removed."""
    asynchronous: bool = True
    """Write in a background thread while training goes on."""
    export: bool = False
    """After the last step write the weights as safetensors in Hugging Face's layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """What a run leaves behind for a later diagnosis."""

    level: Literal["off", "light", "full"] = "light"
    black_box_every_s: float = 5.0
    """Seconds between small flight-recorder snapshots that survive SIGKILL."""
    telemetry_every_s: float = 1.0
    """Seconds between device and host samples."""
    flight_entries: int = 2000
    """Collectives the flight recorder keeps per rank."""
    profile_start: int = 3
    """Step of this attempt, counted from 1, at which the profiler window opens (level full); earlier in a short run."""
    profile_steps: int = 2
    """Steps in the profiler window (level full)."""
    profile_stacks: bool = False
    """Every Python function in that window too: memory causes then have a line, and times are those of the profiler."""
    replica_hash_every: int = 100
    """Steps between comparisons of replicated parameters, bit for bit (ddp, zero1, hsdp); 0 = never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchConfig:
    """The live watch: ends a run that hangs, and says why. Needs record=light or full."""

    enabled: bool = True
    stall_timeout_s: float = 120.0
    """Seconds in which no rank moves or works before the run counts as hung. A rank that computes, compiles or
    reads and writes files is working."""
    first_step_timeout_s: float = 600.0
    """The same until the first step is over: device, communicators and compiled code are set up there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoTracker:
    """metrics.jsonl only."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbTracker:
    """Mirror metrics to Weights & Biases from rank 0."""

    name: Literal["wandb"] = "wandb"
    project: str = "dtk"
    entity: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: online when a key is configured and the server answers at once, else offline."""
    x_axis: Literal["step", "tokens", "seconds"] = "step"
    """What charts are drawn over; each can be chosen in W&B too. Seconds are those since the run began."""
    checkpoints: Literal["none", "last"] = "none"
    """last: the last complete checkpoint is uploaded as an artifact when the run ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorboardTracker:
    """Mirror metrics to TensorBoard event files in the run folder (extra `tensorboard`)."""

    name: Literal["tensorboard"] = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomTracker:
    """Mirror metrics to a tracker of your own: a class on `dtk.record.own_tracker.OwnTracker` (docs/guides)."""

    name: Literal["custom"] = "custom"
    _target_: str
    """Import path of the class; allow it by `allow_targets`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of its constructor, checked against its signature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NCCLConfig:
    """Environment variables for NCCL, set before any communicator exists. Your own always win."""

    name: str = "auto"
    backend: Literal["any", "nccl", "gloo"] = "any"
    """What the ranks must talk over; a preset for another is refused."""
    interface: str | None = None
    """Network interface between the nodes (`eth0`, or several with commas), for presets that name it."""
    hca: str | None = None
    """RDMA devices of the compute rails (`mlx5_0,mlx5_1`), for presets that name them."""
    address_range: str | None = None
    """Addresses of the RDMA network (`10.1.0.0/16`)."""
    traffic_class: int | None = None
    """Traffic class of RoCE: DSCP of the switches' lossless class times 4."""
    topo_file: str | None = None
    """Topology of a virtual machine as its vendor describes it (an XML file)."""
    ras_port: int | None = None
    """Port of NCCL's status service, one for each job on a shared node."""
    variables: dict[str, str] = field(default_factory=dict)
    """Name -> value. `{interface}` and the like stand for the keys above, `{run}` for the run folder; with a question
    mark (`{hca?}`) the variable is left out where the key is null."""
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    """Variable -> why, source, versions, harms, remove; under `preset` what holds for all. Not kept in run folders."""
