"""Checks of a run's inputs before it starts, so that a mistake is one line and not one traceback per rank."""

import math
from typing import TYPE_CHECKING, Any

from dtk.config.compose import Composed
from dtk.config.schema import Config, CustomModelConfig, CustomOptimizerConfig, DataConfig, GPTConfig
from dtk.extras import require
from dtk.sharding.registry import NATIVE

if TYPE_CHECKING:
    from dtk.data.dataset import Dataset

_counted: "list[tuple[DataConfig, list[str], Dataset]]" = []
"""The dataset that `settle_epochs` has built, at most one, for reuse by `check_parts`: building it may take minutes."""


def check_parts(config: Config, world_size: int) -> dict[str, Any]:
    """Check the folder for offloaded states, optimizer, tracker, weights and data; return the data's description.

    Raises:
        DtkError: for the first part that cannot be used.
    """
    from dtk.data.build import check_dataset
    from dtk.record.trackers import check_tracker

    if package := config.strategy.traits.library or config.engine.removeprefix(NATIVE):
        typed = f"strategy={config.strategy.name}" if config.strategy.traits.library else f"engine={config.engine}"
        require(package, typed, package)
    check_tracker(config.tracker)
    if config.strategy.offload_folder is not None:
        from dtk.parallel.tiers import Swap

        Swap(config.strategy.offload_folder, [])  # Each rank reserves its space before its first step.
    if isinstance(config.optimizer, CustomOptimizerConfig):
        from dtk.train.optimizer import check_optimizer

        check_optimizer(config, world_size)
    if isinstance(config.model, GPTConfig) and config.model.pretrained:
        from dtk.models.hf import check_gpt2

        check_gpt2(config.model, config.model.pretrained)
    if isinstance(config.model, CustomModelConfig):
        from dtk.models.build import check_custom

        check_custom(config)
    # Only these can be refused, and the tasks' modules take half a second to import.
    if config.task._target_ is not None or isinstance(config.model, CustomModelConfig):
        from dtk.tasks.build import build_task

        build_task(config)
    dataset = _dataset(config)
    check_dataset(config, dataset)
    return dataset.describe()


def settle_epochs(composed: Composed) -> Composed:
    """Convert `train.epochs` to steps by counting the samples; DtkError if the data cannot be used."""
    config, train = composed.config, composed.config.train
    if train.epochs is None:
        return composed
    dataset = _dataset(config)
    _counted[:] = [(config.data, config.allow_targets, dataset)]
    steps = max(1, math.ceil(train.epochs * dataset.train_size / train.global_batch_size))
    return composed.with_train(steps=steps)


def _dataset(config: Config) -> "Dataset":
    from dtk.data.build import build_dataset

    if _counted and _counted[0][:2] == (config.data, config.allow_targets):
        return _counted.pop()[2]
    return build_dataset(config.data, config.allow_targets)
