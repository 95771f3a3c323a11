"""Language modelling: windows of a token stream, each with its next tokens as targets."""

import numpy as np

from dtk.config.schema import DataConfig
from dtk.data.dataset import Batch, Dataset, held_out, to_batch
from dtk.data.tokens import Tokens
from dtk.errors import DtkError


class LanguageDataset(Dataset):
    """Windows [sequence_length + 1] of a stream: inputs all but the last token, targets all but the first.

    The last validation_fraction of the windows are held out; training ends one token before the first of them, so that
    not even a target is shared.

    Raises:
        DtkError: the stream is too short for one window of training and one of validation.
    """

    def __init__(self, config: DataConfig, tokens: Tokens) -> None:
        length, total = config.sequence_length, len(tokens.ids)
        held_out_samples = held_out((total - 2) // length, config.validation_fraction)
        boundary = total - (held_out_samples * length + 1) if held_out_samples else total
        count = (boundary - 1) // length
        if count < 1:
            what = f"{tokens.about['source']} has {total} tokens"
            needed = (length + 1) * (2 if held_out_samples else 1)
            why = f"data.sequence_length={length} needs at least {needed}, for training and validation"
            raise DtkError(what, why, "use a shorter data.sequence_length or more data")
        self.train_size, self.validation_size = count, held_out_samples
        self.vocab_size, self.fixed_targets = tokens.vocab_size, length
        self._train_rows = _windows(tokens.ids[:boundary], length, count)
        self._validation_rows = _windows(tokens.ids[boundary:], length, held_out_samples)
        self._about = {"name": config.name, **tokens.about, "vocab_size": tokens.vocab_size}

    def train(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets [batch, sequence_length]."""
        block = self._train_rows[ids]
        return to_batch(block[:, :-1], block[:, 1:])

    def validation(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets [batch, sequence_length]."""
        block = self._validation_rows[ids]
        return to_batch(block[:, :-1], block[:, 1:])


def _windows(ids: np.ndarray, length: int, count: int) -> np.ndarray:
    """View [count, length + 1]: row i starts at token i * length, so neighbours share one token."""
    if not count:
        return np.empty((0, length + 1), dtype=ids.dtype)
    return np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::length][:count]
