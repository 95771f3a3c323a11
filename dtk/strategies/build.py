"""From the name in the configuration to the strategy."""

from typing import Any

from dtk.config.schema import PrecisionConfig
from dtk.parallel.context import Context
from dtk.strategies.base import Strategy
from dtk.strategies.ddp import DDP
from dtk.strategies.fsdp import FSDP, HSDP
from dtk.strategies.single import DataParallel, Single
from dtk.strategies.zero1 import Zero1

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "dp": DataParallel,
    "ddp": DDP,
    "zero1": Zero1,
    "zero2": FSDP,
    "zero3": FSDP,
    "fsdp": FSDP,
    "hsdp": HSDP,
}


def build_strategy(config: Any, context: Context, precision: PrecisionConfig) -> Strategy:
    """The strategy that `config.name` chooses.

    Args:
        config: the `strategy` section.
        context: this rank.
        precision: the `precision` section.
    """
    return STRATEGIES[config.name](config, context, precision)
