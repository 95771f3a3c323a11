"""Random tokens: a function of the sample's id, and said to be synthetic."""

import numpy as np
import torch

from dtk.config.schema import SyntheticData
from dtk.data.build import build_dataset


def test_synthetic_is_labelled_and_a_function_of_the_id() -> None:
    config = SyntheticData(sequence_length=16, vocab_size=7, samples=1000)
    dataset = build_dataset(config)
    assert dataset.describe()["synthetic"] is True and dataset.describe()["tokens"] == 17_000
    assert dataset.train_size + dataset.validation_size == 1000
    batch = dataset.train(np.array([5, 6, 5]))
    assert torch.equal(batch.inputs[0], batch.inputs[2]) and not torch.equal(batch.inputs[0], batch.inputs[1])
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    everything = dataset.train(np.arange(dataset.train_size)).inputs
    assert set(everything.unique().tolist()) == set(range(7))
    rows = {tuple(row) for row in everything.tolist()}
    kept = {tuple(row) for row in dataset.validation(np.arange(dataset.validation_size)).inputs.tolist()}
    assert not rows & kept
