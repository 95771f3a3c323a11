"""Whether a fault can happen in this configuration: one that cannot would end in a healthy run and a puzzled user."""

from dtk.config.schema import Config, EveryRankFault, NoFault, SettingFault
from dtk.errors import DtkError

_SHARDED = ("fsdp", "zero3", "zero2", "hsdp")
_REPLICATED = ("ddp", "zero1")
_STRATEGIES: dict[str, tuple[str, ...]] = {
    "branch": _SHARDED,
    "rank0_state_dict": _SHARDED,
    "rank0_evaluation": _SHARDED,
    "full_gather": _SHARDED,
    "no_reshard": _SHARDED,
    "root_only_wrapping": _SHARDED,
    "accumulation_boundary": _REPLICATED,
    "unused_parameters": _REPLICATED,
    "sync_every_micro_batch": _REPLICATED,
    "per_parameter_all_reduce": _REPLICATED,
    "tiny_buckets": _REPLICATED,
    "one_bucket": _REPLICATED,
}
"""Faults that exist under some strategies only."""
_ACCUMULATED = ("accumulation_boundary", "sync_every_micro_batch")


def check_fault(config: Config, world_size: int) -> None:
    """Refuse a fault that cannot happen here.

    Args:
        config: the batch is settled already.
        world_size: ranks in all.

    Raises:
        DtkError: the first reason.
    """
    fault = config.fault
    if isinstance(fault, NoFault):
        return
    name, strategies = fault.name, _STRATEGIES.get(fault.name)
    if strategies is not None and config.strategy.name not in strategies:
        raise DtkError(
            f"fault={name} cannot happen under strategy={config.strategy.name}", fix=f"use strategy={strategies[0]}"
        )
    if isinstance(fault, SettingFault):
        return
    if world_size < 2:
        raise DtkError(f"fault={name} needs two ranks", fix="use launcher.nproc=2")
    if name == "branch" and config.model.architecture != "gpt":
        raise DtkError("fault=branch needs a GPT", "it changes the forward pass", "use model=gpt2_tiny")
    if not isinstance(fault, EveryRankFault) and fault.rank >= world_size:
        raise DtkError(f"fault.rank={fault.rank} does not exist", f"the ranks are 0 to {world_size - 1}")
    if fault.step > config.train.steps:
        raise DtkError(
            f"fault.step={fault.step} never comes", f"train.steps={config.train.steps}", "use a smaller fault.step"
        )
    accumulation = config.train.global_batch_size // (config.train.micro_batch_size * world_size)
    if name in _ACCUMULATED and accumulation < 2:
        raise DtkError(
            f"fault={name} needs several micro-batches a step",
            "here there is one",
            f"use train.global_batch_size={2 * config.train.micro_batch_size * world_size}",
        )
