"""Random tokens, a pure function of the sample's id: for measuring speed and memory, not loss."""

from typing import Any

import numpy as np

from dtk.config.schema import SyntheticData
from dtk.data.dataset import Batch, Dataset, held_out, to_batch
from dtk.data.sampler import STEP, mix64
from dtk.errors import DtkError


class SyntheticDataset(Dataset):
    """Uniform random ids below vocab_size. Nothing can be learnt from them.

    Raises:
        DtkError: vocab_size is not set, or no sample is left for training.
    """

    def __init__(self, config: SyntheticData) -> None:
        self.config = config
        self.validation_size = held_out(config.samples, config.validation_fraction)
        self.train_size = config.samples - self.validation_size
        if config.vocab_size < 1 or self.train_size < 1:
            what = f"data.samples={config.samples} and data.vocab_size={config.vocab_size} leave nothing to train on"
            raise DtkError(what, fix="raise them")
        self.vocab_size = config.vocab_size
        self.fixed_targets = config.sequence_length

    def about(self) -> dict[str, Any]:
        """Return the description of `Dataset`; as there is no text, bytes and sha256 are None."""
        tokens = self.config.samples * (self.config.sequence_length + 1)
        origin = {"name": self.config.name, "source": "random tokens (synthetic)", "bytes": None, "sha256": None}
        return {**origin, "tokens": tokens, "vocab_size": self.vocab_size, "synthetic": True}

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return inputs and targets [batch, sequence_length]."""
        width = self.config.sequence_length + 1
        positions = numbers.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
        block = mix64(positions + STEP) % np.uint64(self.vocab_size)
        return to_batch(block[:, :-1], block[:, 1:])
