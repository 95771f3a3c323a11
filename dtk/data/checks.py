"""Whether a dataset and a model belong together; asked in the parent, before any rank starts."""

from dtk.config.schema import Config
from dtk.data.dataset import Dataset
from dtk.errors import DtkError


def check_dataset(config: Config, dataset: Dataset) -> None:
    """Vocabulary and classes must fit the model.

    Raises:
        DtkError: they do not.
    """
    model = config.model
    if dataset.vocab_size > model.vocab_size:
        raise DtkError(
            f"model.vocab_size={model.vocab_size} is smaller than the tokenizer's {dataset.vocab_size}",
            "token ids would not have an embedding",
            f"use model.vocab_size={dataset.vocab_size}",
        )
    classes = getattr(model, "classes", None)
    if dataset.classes is not None and classes is not None and dataset.classes > classes:
        raise DtkError(
            f"model.classes={classes} is fewer than the {dataset.classes} classes in the data",
            fix=f"use model.classes={dataset.classes}",
        )
    if dataset.train_size < config.train.global_batch_size:
        raise DtkError(
            f"train.global_batch_size={config.train.global_batch_size} is more than the "
            f"{dataset.train_size} training samples",
            fix="use a smaller batch, a shorter data.sequence_length or more data",
        )
