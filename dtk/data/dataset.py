"""The interface of every dataset: samples by id, and a description for the manifest."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

IGNORE = -100
"""Target that does not count; the default `ignore_index` of PyTorch's losses."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one micro-batch, on the CPU until `to`."""

    inputs: Any
    """Token ids, int64 [batch, sequence]; of your own data any tree of tensors [batch, ...]."""
    targets: Any
    """Next tokens, int64 [batch, sequence], or classes, int64 [batch]; of your own data any tree."""
    counts: bool = True
    """Whether it is counted; what fills up the last round of an evaluation is not."""

    def to(self, device: torch.device) -> "Batch":
        """Copy to the rank's device; the copy overlaps with what runs there."""
        if device.type == "cpu":
            return self
        there = partial(_pytree.tree_map_only, Tensor, lambda tensor: tensor.pin_memory().to(device, non_blocking=True))
        return Batch(there(self.inputs), there(self.targets), self.counts)


class Dataset:
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
    _about: Mapping[str, Any] = {}

    def train(self, ids: np.ndarray) -> Batch:
        """Return the training samples of these ids, int64 [batch]."""
        return self.batch(ids)

    def stream(self, ids: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the training samples of one micro-batch after the other; may read ahead of what is taken."""
        return map(self.train, ids)

    def validation(self, ids: np.ndarray) -> Batch:
        """Return the held-out samples of these ids, int64 [batch]."""
        return self.batch(ids + self.train_size)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return samples by number, int64 [batch]: those for training, then the held-out ones."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        """Return where the samples come from: name, source, bytes, sha256, tokens, vocab_size, where it has them."""
        return dict(self._about)

    def describe(self) -> dict[str, Any]:
        """Return for the manifest: `about`, how many samples there are, and whether they are synthetic."""
        sizes = {"train_samples": self.train_size, "validation_samples": self.validation_size}
        return {"synthetic": False, **self.about(), **sizes}


def to_batch(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    """Return a batch of int64 copies of these arrays."""
    first, second = (torch.from_numpy(values.astype(np.int64, order="C")) for values in (inputs, targets))
    return Batch(first, second)


def held_out(samples: int, fraction: float) -> int:
    """Return how many of the samples are for validation: at least one unless the fraction is 0."""
    return max(1, round(samples * fraction)) if fraction else 0
