"""`data=custom`: a user's map-style Dataset, split, distributed and batched like every other source."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset as TorchDataset, default_collate

from dtk.config.schema import CustomData
from dtk.data.dataset import Batch, Dataset, held_out
from dtk.data.sampler import permute
from dtk.errors import DtkError, Errors

_errors = Errors(__file__)
_LOOKED_AT = 8  # Number of samples whose hash identifies a version of the data in the manifest.


class CustomDataset(Dataset):
    """Held-out samples are chosen by a fixed permutation, so that data sorted by class is split evenly.

    Args:
        config: the `data` section.
        samples: has a length; samples[i] is a pair (inputs, targets). An optional method `collate(list of samples)`
            creates the batch: a pair of trees of tensors [batch, ...].

    DtkError if it has no length or too few samples.
    """

    def __init__(self, config: CustomData, samples: TorchDataset[Any]) -> None:
        self.config = config
        try:
            size = len(samples)  # type: ignore[arg-type]
        except TypeError:
            raise _errors("no_length", target=config._target_) from None
        self.validation_size = held_out(size, config.validation_fraction)
        self.train_size = size - self.validation_size
        _errors.refuse({"few": self.train_size < 1}, target=config._target_, size=size)
        self.vocab_size = 0
        self._samples = samples
        self._collate = getattr(samples, "collate", default_collate)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return the batch of these samples, in the order of the permutation."""
        return self._collated([self._samples[i] for i in self._permuted(numbers)])

    def stream(self, ids: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield batches as `train` returns them; with `data.workers`, processes prefetch them."""
        workers = self.config.workers
        if not workers:
            return super().stream(ids)
        numbers = (self._permuted(of_batch) for of_batch in ids)
        loader = DataLoader(self._samples, batch_sampler=numbers, num_workers=workers, collate_fn=self._or_error)  # type: ignore[arg-type]
        return _received(loader)

    def about(self) -> dict[str, Any]:
        """Return the description of `Dataset`; sha256 covers the length and a few samples."""
        size = self.train_size + self.validation_size
        digest = hashlib.sha256(str(size).encode())
        for i in np.linspace(0, size - 1, min(size, _LOOKED_AT), dtype=int):
            digest.update(repr(self._samples[int(i)]).encode())
        return {"name": self.config.name, "source": self.config._target_, "bytes": None, "sha256": digest.hexdigest()}

    def _permuted(self, numbers: np.ndarray) -> list[int]:
        return permute(numbers, self.train_size + self.validation_size, "split").tolist()  # type: ignore[no-any-return]

    def _or_error(self, samples: list[Any]) -> Batch | DtkError:
        """Return a DtkError instead of raising it: a worker would pass on only the text of its traceback."""
        try:
            return self._collated(samples)
        except DtkError as error:
            return error

    def _collated(self, samples: list[Any]) -> Batch:
        try:
            batch = self._collate(samples)
        except (RuntimeError, TypeError) as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise _errors("no_batch", target=self.config._target_, why=why) from error
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise _errors("no_pair", target=self.config._target_, kind=type(samples[0]).__qualname__)
        return Batch(batch[0], batch[1])


def _received(loader: Iterable[Batch | DtkError]) -> Iterator[Batch]:
    try:
        for item in loader:
            if isinstance(item, DtkError):
                raise item
            yield item
    except (OSError, EOFError) as error:
        if str(error).startswith("Caught "):  # By torch, in a worker: the dataset's own.
            raise
        what = f"DataLoader worker exited unexpectedly while it sent a batch ({type(error).__name__})"
        raise RuntimeError(what) from None
