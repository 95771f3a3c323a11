"""What every dataset offers to training: samples by id, and a description for the manifest."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

IGNORE = -100
"""Target that does not count; the default `ignore_index` of PyTorch's losses."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one micro-batch, on the CPU until `to_device`."""

    inputs: Tensor
    """Token ids, int64 [batch, sequence]."""
    targets: Tensor
    """Next tokens, int64 [batch, sequence], or classes, int64 [batch]."""


class Dataset(ABC):
    """Samples numbered 0..train_size-1 and, apart from these, 0..validation_size-1."""

    train_size: int
    """Samples for training."""
    validation_size: int
    """Samples held out; no token of them occurs in training."""
    vocab_size: int
    """Token ids are below it."""
    classes: int | None = None
    """Number of classes; None for language modelling."""
    fixed_targets: int | None = None
    """Valid targets per sample where all samples have the same number, else None."""

    @abstractmethod
    def train(self, ids: np.ndarray) -> Batch:
        """Training samples of these ids, int64 [batch]."""

    @abstractmethod
    def validation(self, ids: np.ndarray) -> Batch:
        """Held-out samples of these ids, int64 [batch]."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """For the manifest: name, source, bytes, sha256, tokens, samples, vocab_size, synthetic."""


def to_batch(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    """Return a batch of int64 copies of these arrays."""
    return Batch(
        torch.from_numpy(inputs.astype(np.int64, order="C")), torch.from_numpy(targets.astype(np.int64, order="C"))
    )


def held_out(samples: int, fraction: float) -> int:
    """How many of the samples are for validation: at least one unless the fraction is 0."""
    return max(1, round(samples * fraction)) if fraction else 0
