"""Language modelling: windows of a token stream, each with its next tokens as targets."""

from typing import Any

import numpy as np

from dtk.config.schema import DataConfig
from dtk.data.dataset import Batch, Dataset, held_out, to_batch
from dtk.data.tokens import Tokens
from dtk.errors import DtkError


class LanguageDataset(Dataset):
    """Windows [sequence_length + 1] at multiples of sequence_length: inputs all but the last token, targets all but
    the first.

    Args:
        name: of the source, for the manifest.
        train_rows, validation_rows: overlapping views of the tokens, [samples, sequence_length + 1]. No
            token is in both.
        tokens: where they come from.
    """

    def __init__(self, name: str, train_rows: np.ndarray, validation_rows: np.ndarray, tokens: Tokens) -> None:
        self.name = name
        self.train_size = len(train_rows)
        self.validation_size = len(validation_rows)
        self.vocab_size = tokens.vocab_size
        self.fixed_targets = train_rows.shape[1] - 1
        self._train_rows = train_rows
        self._validation_rows = validation_rows
        self._about = tokens.about

    def train(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets [batch, sequence_length]."""
        return _batch(self._train_rows, ids)

    def validation(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets [batch, sequence_length]."""
        return _batch(self._validation_rows, ids)

    def about(self) -> dict[str, Any]:
        """See `Dataset`."""
        return {"name": self.name, **self._about, "vocab_size": self.vocab_size}


def language_dataset(config: DataConfig, tokens: Tokens) -> LanguageDataset:
    """Cut a stream into windows; the last validation_fraction of them are held out.

    Training ends one token before the first held-out one, so that not even a target is shared.

    Raises:
        DtkError: the stream is too short for one window of training and one of validation.
    """
    length, total = config.sequence_length, len(tokens.ids)
    windows = (total - 2) // length
    held = held_out(windows, config.validation_fraction)
    boundary = total - (held * length + 1) if held else total
    count = (boundary - 1) // length
    if count < 1:
        needed = (length + 1) * (2 if held else 1)
        what = f"{tokens.about['source']} has {total} tokens"
        why = f"data.sequence_length={length} needs at least {needed}, for training and validation"
        raise DtkError(what, why, "use a shorter data.sequence_length or more data")
    train, validation = _windows(tokens.ids[:boundary], length, count), _windows(tokens.ids[boundary:], length, held)
    return LanguageDataset(config.name, train, validation, tokens)


def _windows(ids: np.ndarray, length: int, count: int) -> np.ndarray:
    """View [count, length + 1]: row i starts at token i * length, so neighbours share one token."""
    if not count:
        return np.empty((0, length + 1), dtype=ids.dtype)
    return np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::length][:count]


def _batch(rows: np.ndarray, ids: np.ndarray) -> Batch:
    block = rows[ids]
    return to_batch(block[:, :-1], block[:, 1:])
