"""Keys of the run itself: training, checkpoints, recording, tracker, NCCL."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Batch, length and what happens around a step."""

    steps: int = 15
    epochs: float | None = None
    global_batch_size: int = 8
    micro_batch_size: int = 0
    clip_norm: float | None = 1.0
    log_every: int = 1
    evaluate_every: int = 0
    evaluate_samples: int | None = 32
    activation_checkpoint_every: int = 0
    compile: bool = False
    deterministic: bool = False
    garbage_collect_every: int = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """The task: how a batch is used, its loss and its metrics."""

    name: Literal["auto", "language_modeling", "classification", "image_classification", "regression"] = "auto"
    _target_: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallbackConfig:
    """Code of your own at fixed points of a run, named by import path: a subclass of `dtk.train.callbacks.Callback`."""

    _target_: str
    arguments: dict[str, Any] = field(default_factory=dict)
    keep_going: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints of model, optimizer and step (torch.distributed.checkpoint)."""

    every: int = 500
    at_end: bool = True
    keep: int = 2
    asynchronous: bool = True
    export: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """What a run records for a later diagnosis."""

    level: Literal["off", "light", "full"] = "light"
    black_box_every_s: float = 5.0
    telemetry_every_s: float = 1.0
    flight_entries: int = 2000
    profile_start: int = 3
    profile_steps: int = 2
    profile_stacks: bool = False
    replica_hash_every: int = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchConfig:
    """The live watch: ends a run that hangs, and reports why. Needs record=light or full."""

    enabled: bool = True
    stall_timeout_s: float = 120.0
    first_step_timeout_s: float = 600.0


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
    x_axis: Literal["step", "tokens", "seconds"] = "step"
    checkpoints: Literal["none", "last"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorboardTracker:
    """Mirror metrics to TensorBoard event files in the run folder (extra `tensorboard`)."""

    name: Literal["tensorboard"] = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomTracker:
    """Mirror metrics to a tracker of your own: a subclass of `dtk.record.own_tracker.OwnTracker` (docs/guides)."""

    name: Literal["custom"] = "custom"
    _target_: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NCCLConfig:
    """Environment variables for NCCL, set before any communicator exists. The user's own take precedence."""

    name: str = "auto"
    backend: Literal["any", "nccl", "gloo"] = "any"
    interface: str | None = None
    hca: str | None = None
    address_range: str | None = None
    traffic_class: int | None = None
    topo_file: str | None = None
    ras_port: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
