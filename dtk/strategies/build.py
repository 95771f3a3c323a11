"""From the name in the configuration to the strategy."""

from importlib import import_module
from typing import Any, cast

from dtk.config.schema import PrecisionConfig
from dtk.parallel.context import Context
from dtk.strategies.base import Strategy

STRATEGIES = {
    "single": "single.Single",
    "dp": "single.DataParallel",
    "ddp": "ddp.DDP",
    "zero1": "zero1.Zero1",
    "zero2": "fsdp.FSDP",
    "zero3": "fsdp.FSDP",
    "fsdp": "fsdp.FSDP",
    "hsdp": "fsdp.HSDP",
}
"""Name -> module and class. Only the chosen one is imported: what torch loads for the others delays the first step."""


def build_strategy(config: Any, context: Context, precision: PrecisionConfig) -> Strategy:
    """The strategy that `config.name` chooses.

    Args:
        config: the `strategy` section.
        context: this rank.
        precision: the `precision` section.
    """
    module, _, name = STRATEGIES[config.name].partition(".")
    chosen = getattr(import_module(f"dtk.strategies.{module}"), name)
    return cast(Strategy, chosen(config, context, precision))
