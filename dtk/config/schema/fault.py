"""Keys of the `fault` section: one dataclass per family, so that a key without meaning for a fault is refused."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class NoFault:
    """Nothing goes wrong; nothing of `dtk.faults` is imported."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingFault:
    """Nothing but settings: the other keys of the fault's file are the fault, `name` labels the run."""

    name: Literal[
        "no_reshard", "root_only_wrapping", "tiny_buckets", "one_bucket", "nccl_typo", "pipeline_bubble",
        "pipeline_imbalance",
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class EveryRankFault:
    """Every rank takes part, from one step on."""

    name: Literal[
        "branch", "group_order", "recv_before_send", "full_gather", "gathered_logits", "leak",
        "sync_every_micro_batch", "per_parameter_all_reduce", "expert_imbalance",
    ]  # fmt: skip
    step: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFault:
    """One rank does something else than the others, in one step."""

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
    """One rank is late in every step from one step on."""

    name: Literal["straggler"] = "straggler"  # type: ignore[assignment]
    delay_s: float = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesFault:
    """The ranks of a machine stand for nodes, with a slow link between them."""

    name: Literal["tp_across_nodes"] = "tp_across_nodes"
    ranks_per_node: int = 1
    times: int = 20
