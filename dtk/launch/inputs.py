"""What can be found out before a run begins of the things that it reads: in one line, instead of on every rank."""

import math
from typing import Any

from dtk.config.compose import Composed
from dtk.config.schema import Config, CustomModelConfig, CustomOptimizerConfig, GPTConfig


def check_parts(config: Config, world_size: int) -> dict[str, Any]:
    """Look at optimizer, tracker, weights and data where they are.

    Args:
        config: settled for `world_size`.
        world_size: ranks over all nodes.

    Returns:
        what the data is.

    Raises:
        DtkError: the first part that cannot be used.
    """
    from dtk.data.build import build_dataset, check_dataset
    from dtk.record.trackers import check_tracker

    check_tracker(config.tracker)
    if isinstance(config.optimizer, CustomOptimizerConfig):
        from dtk.train.optimizer import check_optimizer

        check_optimizer(config, world_size)
    if isinstance(config.model, GPTConfig) and config.model.pretrained:
        from dtk.models.hf import check_gpt2

        check_gpt2(config.model, config.model.pretrained)
    if isinstance(config.model, CustomModelConfig):
        from dtk.models.build import check_custom

        check_custom(config)
    if config.task._target_ is not None:
        from dtk.tasks.build import build_task

        build_task(config)
    dataset = build_dataset(config.data, config.allow_targets)
    check_dataset(config, dataset)
    return dataset.describe()


def settle_epochs(composed: Composed) -> Composed:
    """Turn `train.epochs` into steps: the samples are counted.

    Raises:
        DtkError: the data cannot be used.
    """
    from dtk.data.build import build_dataset

    config, train = composed.config, composed.config.train
    if train.epochs is None:
        return composed
    size = build_dataset(config.data, config.allow_targets).train_size
    steps = max(1, math.ceil(train.epochs * size / train.global_batch_size))
    return composed.with_train(steps=steps)
