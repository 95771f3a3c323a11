"""Keys of the `fault` section: one dataclass per family, so that keys without meaning for a fault are rejected."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class NoFault:
    """No fault; nothing of `dtk.faults` is imported."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingFault:
    """A fault that consists of settings: the other keys of the fault's file; `name` labels the run."""

    name: Literal[
        "no_reshard", "root_only_wrapping", "tiny_buckets", "one_bucket", "nccl_typo", "pipeline_bubble",
        "pipeline_imbalance",
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class EveryRankFault:
    """A fault on every rank, from one step on."""

    name: Literal[
        "branch", "group_order", "recv_before_send", "full_gather", "gathered_logits", "leak",
        "sync_every_micro_batch", "per_parameter_all_reduce", "expert_imbalance",
    ]  # fmt: skip
    step: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFault:
    """A fault in which one rank deviates in one step."""

    name: Literal[
        "extra_collective", "other_operation", "other_shape", "other_dtype", "rank0_state_dict", "rank0_evaluation",
        "uneven_batches", "early_stop", "swallowed_exception", "exception", "sigkill", "out_of_memory",
        "data_loader_stuck", "accumulation_boundary", "unused_parameters", "nan_on_one_rank", "pipeline_mismatch",
        "all_to_all_splits", "tp_divergence",
    ]  # fmt: skip
    rank: int = 1
    step: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRankFault(RankFault):
    """A fault in which one rank is late in every step from one step on."""

    name: Literal["straggler"] = "straggler"  # type: ignore[assignment]
    delay_s: float = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesFault:
    """A fault that treats ranks of one machine as nodes with a slow link between them."""

    name: Literal["tp_across_nodes"] = "tp_across_nodes"
    ranks_per_node: int = 1
    times: int = 20
