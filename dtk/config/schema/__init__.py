"""Types of the configuration: one frozen dataclass per section, the meaning of each key below it.

Values live in `conf/`; this package says which keys exist and what they mean. It imports neither
torch nor hydra, so `dtk --help` and the docs can read it. Sections with several kinds (model,
data, strategy, ...) are told apart by `name` (models by `architecture`): see `KINDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from dtk.config.schema.data import (
    ClassificationData,
    DataConfig,
    HFData,
    StdlibData,
    SyntheticData,
    TextData,
    TokensData,
)
from dtk.config.schema.fault import EveryRankFault, NoFault, RankFault, SettingFault, SlowRankFault
from dtk.config.schema.launcher import (
    KubernetesLauncher,
    LauncherConfig,
    RemoteLauncher,
    SkypilotLauncher,
    SlurmLauncher,
)
from dtk.config.schema.model import CustomModelConfig, EncoderConfig, GPTConfig, LlamaConfig
from dtk.config.schema.numerics import (
    AdamWConfig,
    ConstantSchedule,
    CosineSchedule,
    PrecisionConfig,
    SGDConfig,
    WSDSchedule,
)
from dtk.config.schema.run import (
    CheckpointConfig,
    NCCLConfig,
    NoTracker,
    RecordConfig,
    TensorboardTracker,
    TrainConfig,
    WandbTracker,
    WatchConfig,
)
from dtk.parallel.batch_plan import BatchPlan
from dtk.strategies.registry import CONFIG_TYPES

__all__ = [
    "KINDS",
    "AdamWConfig",
    "CheckpointConfig",
    "ClassificationData",
    "Config",
    "ConstantSchedule",
    "CosineSchedule",
    "CustomModelConfig",
    "DataConfig",
    "EncoderConfig",
    "EveryRankFault",
    "GPTConfig",
    "HFData",
    "KubernetesLauncher",
    "LauncherConfig",
    "LlamaConfig",
    "NCCLConfig",
    "NoFault",
    "NoTracker",
    "PrecisionConfig",
    "RankFault",
    "RecordConfig",
    "RemoteLauncher",
    "SGDConfig",
    "SettingFault",
    "SkypilotLauncher",
    "SlowRankFault",
    "SlurmLauncher",
    "StdlibData",
    "SyntheticData",
    "TensorboardTracker",
    "TextData",
    "TokensData",
    "TrainConfig",
    "WSDSchedule",
    "WandbTracker",
    "WatchConfig",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole experiment, resolved: what `runs/<id>/config.yaml` holds."""

    model: Any
    data: Any
    strategy: Any
    precision: PrecisionConfig
    optimizer: Any
    schedule: Any
    train: TrainConfig
    checkpoint: CheckpointConfig
    record: RecordConfig
    tracker: Any
    launcher: Any
    nccl: NCCLConfig
    fault: Any = field(default_factory=NoFault)
    watch: WatchConfig = field(default_factory=WatchConfig)
    preflight: Literal["on", "off"] = "off"
    """Simulate every rank before the launch, and do not launch what would hang."""
    seed: int = 1234
    """Initial weights and sample order are functions of it."""
    runs_folder: str = "runs"
    """Where run folders are made."""
    resume: str | None = None
    """A run folder to continue."""
    allow_targets: list[str] = field(default_factory=list)
    """Import paths (or prefixes ending in `.*`) that `_target_` may name besides dtk's own."""

    def batch_plan(self, world_size: int) -> BatchPlan:
        """How the global batch is divided on that many processes; the strategy says which are data-parallel."""
        mesh = self.strategy.mesh(world_size)
        return BatchPlan(self.train.global_batch_size, self.train.micro_batch_size, mesh.dp_size)


def _fault_kinds() -> dict[str, type]:
    """Each name that a family of faults lists -> that family."""
    families = (NoFault, SettingFault, EveryRankFault, RankFault, SlowRankFault)
    return {name: family for family in families for name in get_args(get_type_hints(family)["name"])}


KINDS: dict[str, tuple[str, Mapping[str, type]]] = {
    "model": (
        "architecture",
        {"gpt": GPTConfig, "llama": LlamaConfig, "encoder": EncoderConfig, "custom": CustomModelConfig},
    ),
    "data": (
        "name",
        {
            "stdlib": StdlibData,
            "text": TextData,
            "tokens": TokensData,
            "hf": HFData,
            "classification": ClassificationData,
            "synthetic": SyntheticData,
        },
    ),
    "strategy": ("name", CONFIG_TYPES),
    "optimizer": ("name", {"adamw": AdamWConfig, "sgd": SGDConfig}),
    "schedule": ("name", {"constant": ConstantSchedule, "cosine": CosineSchedule, "wsd": WSDSchedule}),
    "tracker": ("name", {"none": NoTracker, "wandb": WandbTracker, "tensorboard": TensorboardTracker}),
    "launcher": (
        "name",
        {
            "local": LauncherConfig,
            "slurm": SlurmLauncher,
            "kubernetes": KubernetesLauncher,
            "skypilot": SkypilotLauncher,
        },
    ),
    "fault": ("name", _fault_kinds()),
}
"""Section -> (discriminating key, value of that key -> dataclass)."""
