"""The range of every number in the configuration. Knows single keys; rules between keys are in `checks`."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.errors import DtkError

_ABOVE_ZERO = math.ulp(0.0)  # The smallest float: excludes 0 itself.
_BELOW_ONE = math.nextafter(1.0, 0.0)  # The largest float below 1: excludes 1 itself.
_NONE = math.inf
_COUNT = 2**31 - 1
"""More vocabulary, context, width or layers than any tensor library indexes in one dimension."""
_LAYERS = 100_000  # Far beyond any model; more is a slip of the keyboard and would fill memory with modules.
_RANKS = 1_000_000
"""More ranks than any cluster has."""
_DIGITS = 40  # A longer number is cut in a message.

_RANGES: tuple[tuple[float, float, str], ...] = (
    (-1, _NONE, "train.evaluate_every"),
    (-1, _RANKS, "parallel.dp_replicate parallel.dp_shard"),
    (
        0,
        _NONE,
        """
        train.activation_checkpoint_every train.garbage_collect_every optimizer.lr optimizer.weight_decay
        model.balance_loss model.z_loss
        schedule.warmup_steps schedule.decay_steps checkpoint.every record.profile_start record.replica_hash_every
        launcher.max_restarts launcher.grace_period_s data.workers fault.rank fault.delay_s
        """,
    ),
    (0, 1, "schedule.min_lr_ratio"),
    (0, _BELOW_ONE, "model.dropout data.validation_fraction optimizer.betas optimizer.momentum"),
    (0, 255, "nccl.traffic_class"),
    (0, 65535, "launcher.master_port"),
    (0, _RANKS, "launcher.gpus_per_node"),
    (0, 2**63 - 1, "seed"),
    (
        _ABOVE_ZERO,
        _NONE,
        """
        train.clip_norm train.epochs model.rope_theta model.norm_eps model.capacity_factor optimizer.eps
        precision.initial_loss_scale
        record.black_box_every_s record.telemetry_every_s launcher.timeout_s
        """,
    ),
    (
        1,
        _NONE,
        """
        train.steps train.global_batch_size train.micro_batch_size train.log_every train.evaluate_samples
        data.sequence_length data.max_bytes data.vocab_size data.samples data.samples_per_class parallel.microbatches
        watch.stall_timeout_s watch.first_step_timeout_s checkpoint.keep record.flight_entries
        record.profile_steps launcher.nproc launcher.threads launcher.cpus_per_rank launcher.time launcher.disk_gb
        fault.step
        """,
    ),
    (1, 65535, "launcher.signal_before_s nccl.ras_port"),
    (1, _LAYERS, "model.layers"),
    (1, _RANKS, "parallel.cp parallel.tp parallel.pp parallel.ep parallel.stages_per_rank"),
    (1, _RANKS, "launcher.world_size launcher.nodes"),
    (1, _COUNT, "model.vocab_size model.context_length model.heads model.kv_heads model.width model.ffn_width"),
    (1, _COUNT, "model.experts model.experts_per_token model.expert_width"),
    (0, _LAYERS, "model.shared_experts model.dense_layers"),
    (2, _NONE, "model.classes"),
)
LIMITS = {key: (low, high) for low, high, keys in _RANGES for key in keys.split()}
"""Dotted key -> smallest and largest value. A test holds it against the schema: no number is left out."""


def check_limits(config: Config) -> None:
    """Refuse a number outside its range.

    Raises:
        DtkError: the first one, with the range.
    """
    check_numbers(to_plain(config), {f"strategy.{key}": bounds for key, bounds in config.strategy.limits.items()})
    betas = getattr(config.optimizer, "betas", None)
    if betas is not None and len(betas) != 2:
        raise DtkError(f"optimizer.betas has {len(betas)} numbers", "AdamW has two", "use optimizer.betas=[0.9,0.95]")
    if getattr(config.optimizer, "nesterov", False) and not config.optimizer.momentum:
        raise DtkError("optimizer.nesterov=true needs optimizer.momentum above 0", fix="use optimizer.momentum=0.9")


def check_numbers(plain: dict[str, Any], more: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Refuse a number outside its range, in the whole configuration or in some of its sections.

    Args:
        plain: section -> key -> value.
        more: ranges of keys beside `LIMITS`.

    Raises:
        DtkError: the first one, with the range.
    """
    limits = {**LIMITS, **(more or {})}
    for key, value in _numbers(plain):
        low, high = limits.get(key, (-_NONE, _NONE))
        if not low <= value <= high:
            least = "above 0" if low == _ABOVE_ZERO else f"{_show(low)} or more"
            span = f"{_show(low)} to {_show(high)}"
            span = least if high == _NONE else f"{least} and below 1" if high == _BELOW_ONE else span
            raise DtkError(f"{key}={_show(value)} is out of range", f"it must be {span}")


def _numbers(plain: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number by its dotted key; the members of a list by the key of the list."""
    for name, value in plain.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _numbers(value, f"{key}.")
        else:
            members = value if isinstance(value, list) else [value]
            yield from ((key, x) for x in members if isinstance(x, int | float) and not isinstance(x, bool))


def _show(number: float) -> str:
    """Format a whole number in full, shortened if it is very long, and any other number to 12 digits."""
    if isinstance(number, float):
        return f"{number:.12g}"
    text = str(number)
    return text if len(text) <= _DIGITS else f"{text[:6]}...({len(text)} digits)"
