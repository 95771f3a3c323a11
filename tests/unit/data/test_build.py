"""The section data: wrong input is one line, and data must fit the model and the batch."""

import numpy as np
import pytest

from dtk.config.compose import compose
from dtk.config.schema import StdlibData, SyntheticData, TextData, TokensData
from dtk.data.build import build_dataset, check_dataset
from dtk.data.dataset import Batch, Dataset
from dtk.errors import DtkError


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TextData(path="/not/here"), "no such file or folder"),
        (StdlibData(max_bytes=200), "has 20. tokens: data.sequence_length=128 needs at least 258"),
        (StdlibData(tokenizer="word"), 'unknown tokenizer "word"'),
        (StdlibData(validation_fraction=1.0), "validation_fraction=1.0"),
        (StdlibData(sequence_length=0), "sequence_length=0"),
        (TokensData(path="/not/here.bin"), "no such token file"),
        (SyntheticData(samples=1), "leave nothing to train on"),
    ],
)
def test_wrong_input_is_one_line(config: StdlibData, message: str) -> None:
    with pytest.raises(DtkError, match=message) as caught:
        build_dataset(config)
    assert "\n" not in str(caught.value)


class Samples(Dataset):
    """A dataset of these sizes."""

    def __init__(self, vocab_size: int, classes: int | None = None, train_size: int = 64) -> None:
        self.vocab_size, self.classes, self.train_size, self.validation_size = vocab_size, classes, train_size, 0

    def train(self, ids: np.ndarray) -> Batch:
        raise NotImplementedError

    validation = train


def test_data_that_fits_the_model_and_the_batch() -> None:
    config = compose(["model=gpt2_tiny", "model.vocab_size=300", "train.global_batch_size=64"]).config
    check_dataset(config, Samples(300))
    check_dataset(config, Samples(300, classes=5))  # A language model has no classes to fit.


@pytest.mark.parametrize(
    ("overrides", "dataset", "message"),
    [
        (["model=gpt2_tiny", "model.vocab_size=300"], Samples(301), "use model.vocab_size=301"),
        (
            ["model=bert_tiny", "model.vocab_size=300", "model.classes=2"],
            Samples(300, classes=3),
            "model.classes=2 is fewer than the 3 classes in the data - use model.classes=3",
        ),
        (
            ["model=gpt2_tiny", "train.global_batch_size=16"],
            Samples(8, train_size=15),
            "train.global_batch_size=16 is more than the 15 training samples",
        ),
    ],
)
def test_data_that_does_not_fit(overrides: list[str], dataset: Dataset, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        check_dataset(compose(overrides).config, dataset)
    assert message in str(caught.value)
