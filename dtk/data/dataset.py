"""The interface of every dataset: samples by id, and a description for the manifest; and random tokens, a pure function
of the id of a sample, for measuring speed and memory, not loss.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from dtk.config.schema import SyntheticData
from dtk.data.sampler import STEP, mix64
from dtk.errors import DtkError

IGNORE = -100  # Target that is ignored; the default `ignore_index` of PyTorch's losses.


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one micro-batch, on the CPU until `to`."""

    inputs: Any
    """Token ids, int64 [batch, sequence]; for custom data any tree of tensors [batch, ...]."""
    targets: Any
    """Next tokens, int64 [batch, sequence], or classes, int64 [batch]; for custom data any tree of tensors."""
    counts: bool = True
    """Whether the batch is counted; batches that fill the last round of an evaluation are not."""

    def to(self, device: torch.device) -> "Batch":
        """Copy to the rank's device, asynchronously."""
        if device.type == "cpu":
            return self
        there = partial(_pytree.tree_map_only, Tensor, lambda tensor: tensor.pin_memory().to(device, non_blocking=True))
        return Batch(there(self.inputs), there(self.targets), self.counts)


class Dataset:
    """Samples numbered 0..train_size-1 and, separately, 0..validation_size-1."""

    train_size: int
    """Number of training samples."""
    validation_size: int
    """Number of held-out samples; none of their tokens occurs in training."""
    vocab_size: int
    """Exclusive upper bound of token ids."""
    classes: int | None = None
    """Number of classes; None for language modelling."""
    fixed_targets: int | None = None
    """Valid targets per sample if all samples have the same number, else None."""
    _about: Mapping[str, Any] = {}

    def train(self, ids: np.ndarray) -> Batch:
        """Return the training samples with these ids, int64 [batch]."""
        return self.batch(ids)

    def stream(self, ids: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the training samples of one micro-batch after the other; may prefetch."""
        return map(self.train, ids)

    def validation(self, ids: np.ndarray) -> Batch:
        """Return the held-out samples with these ids, int64 [batch]."""
        return self.batch(ids + self.train_size)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return samples by index, int64 [batch]: training samples first, then the held-out ones."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        """Return the origin of the samples, as far as known: name, source, bytes, sha256, tokens, vocab_size."""
        return dict(self._about)

    def describe(self) -> dict[str, Any]:
        """Return the manifest's entry: `about`, the number of samples, and whether they are synthetic."""
        sizes = {"train_samples": self.train_size, "validation_samples": self.validation_size}
        return {"synthetic": False, **self.about(), **sizes}


def to_batch(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    """Return a batch with int64 copies of these arrays."""
    first, second = (torch.from_numpy(values.astype(np.int64, order="C")) for values in (inputs, targets))
    return Batch(first, second)


def held_out(samples: int, fraction: float) -> int:
    """Return the number of validation samples: at least one unless the fraction is 0."""
    return max(1, round(samples * fraction)) if fraction else 0


class SyntheticDataset(Dataset):
    """Uniform random ids, from which nothing can be learnt; DtkError without a vocab_size, or a training sample."""

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
