"""Types of the configuration: one frozen dataclass per section, and a YAML file per module that documents each key.

Values are in `conf/`; this package defines the keys. It imports neither torch nor hydra, so `dtk --help` and the docs
can use it. Sections with several kinds (model, data, ...) differ by `name` (models by `architecture`): see `KINDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, get_args, get_type_hints

from diagnostics.contract.mesh import Mesh
from dtk.config.schema.data import *
from dtk.config.schema.fault import *
from dtk.config.schema.launcher import *
from dtk.config.schema.model import *
from dtk.config.schema.numerics import *
from dtk.config.schema.parallel import ParallelConfig as ParallelConfig
from dtk.config.schema.run import *
from dtk.parallel.batch_plan import BatchPlan
from dtk.parallel.number_formats import PrecisionConfig as PrecisionConfig
from dtk.parallel.pipeline import stage_sizes
from dtk.sharding.registry import CONFIG_TYPES, NATIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole experiment, resolved: the content of `runs/<id>/config.yaml`."""

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
    task: TaskConfig = field(default_factory=TaskConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    fault: Any = field(default_factory=NoFault)
    watch: WatchConfig = field(default_factory=WatchConfig)
    engine: Literal["native", "accelerate"] = NATIVE
    preflight: Literal["on", "off"] = "off"
    callbacks: list[CallbackConfig] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    seed: int = 1234
    runs_folder: str = "runs"
    resume: str | None = None
    allow_targets: list[str] = field(default_factory=list)

    def batch_plan(self, world_size: int) -> BatchPlan:
        """Return the division of the global batch over this many processes, of which the mesh has dp_size parts."""
        dp_size = self.mesh(world_size).dp_size
        return BatchPlan(self.train.global_batch_size, self.train.micro_batch_size, dp_size)

    def mesh(self, world_size: int) -> Mesh:
        """Return the mesh of a number of ranks; DtkError if the degrees do not match it or the strategy."""
        return self.parallel.mesh(self.strategy, world_size)

    def stage_blocks(self, layers: int) -> list[range]:
        """Return the blocks of each pipeline stage of a model with this many blocks."""
        parallel, head = self.parallel, head_blocks(self.model, self.data.sequence_length)
        sizes = parallel.blocks_per_stage or stage_sizes(layers, parallel.pp * parallel.stages_per_rank, head)
        return [range(end - size, end) for end, size in zip(accumulate(sizes), sizes)]


def _kinds(tag: str, *classes: type) -> tuple[str, dict[str, type]]:
    """Return the discriminating key, and each of its values -> the class that lists it."""
    return tag, {value: cls for cls in classes for value in get_args(get_type_hints(cls)[tag])}


KINDS: dict[str, tuple[str, Mapping[str, type]]] = {
    "model": _kinds("architecture", GPTConfig, LlamaConfig, MoEConfig, EncoderConfig, CustomModelConfig),
    "data": _kinds("name", StdlibData, TextData, TokensData, HFData, ClassificationData, SyntheticData, CustomData),
    "strategy": ("name", CONFIG_TYPES),
    "optimizer": _kinds("name", AdamWConfig, SGDConfig, CustomOptimizerConfig),
    "schedule": _kinds("name", ConstantSchedule, CosineSchedule, WSDSchedule, CustomSchedule),
    "tracker": _kinds("name", NoTracker, WandbTracker, TensorboardTracker, CustomTracker),
    "launcher": _kinds("name", LocalLauncher, SlurmLauncher, KubernetesLauncher, SkypilotLauncher),
    "fault": _kinds("name", NoFault, SettingFault, EveryRankFault, RankFault, SlowRankFault, NodesFault),
}
"""Section -> (discriminating key, value of that key -> dataclass)."""
