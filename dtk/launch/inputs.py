"""What can be found out before a run begins of the things that it reads: in one line, instead of on every rank."""

from typing import Any

from dtk.config.schema import Config, CustomModelConfig, GPTConfig


def check_parts(config: Config) -> dict[str, Any]:
    """Look at tracker, weights and data where they are.

    Returns:
        what the data is.

    Raises:
        DtkError: the first part that cannot be used.
    """
    from dtk.data.build import build_dataset
    from dtk.data.checks import check_dataset
    from dtk.record.trackers import check_tracker

    check_tracker(config.tracker)
    if isinstance(config.model, GPTConfig) and config.model.pretrained:
        from dtk.models.hf import check_gpt2

        check_gpt2(config.model, config.model.pretrained)
    if isinstance(config.model, CustomModelConfig):
        from dtk.models.build import check_custom

        check_custom(config)
    dataset = build_dataset(config.data)
    check_dataset(config, dataset)
    return dataset.describe()
