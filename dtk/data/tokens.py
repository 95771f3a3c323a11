"""Token streams, each a memory-mapped array: a tokenised corpus from the cache, or a user's file of token ids. Language
modelling: windows of a stream, each with its next tokens as targets.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dtk.config.schema import DataConfig, TokensData
from dtk.data.cache import Writer, cached
from dtk.data.corpus import Corpus
from dtk.data.dataset import Batch, Dataset, held_out, to_batch
from dtk.data.tokenizer import Tokenizer, token_dtype
from dtk.errors import DtkError, Errors, refused

_errors = Errors(__file__)
_FORMAT = 1  # Part of every key; increase it when the same text yields different tokens.

_CHECKED_CHUNKS = 64  # Chosen: up to 64 MiB are hashed whole; of larger files as much, evenly spread, and the size.
_CHUNK_BYTES = 1 << 20  # Chosen: bytes of such a chunk.
_FEW_IDS = 16  # With fewer ids their dtype is not checked: any pattern may be chance.
_NPY = b"\x93NUMPY"  # First bytes of a file that `numpy.save` wrote.


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """A stream of token ids."""

    ids: np.ndarray
    """Unsigned, [tokens], read-only, memory-mapped."""
    vocab_size: int
    about: dict[str, Any]
    """Description for the manifest: source, bytes, sha256, tokens and more."""


Pieces = Iterator[tuple[bytes, bool]]  # Pieces of UTF-8 text, and whether each ends a document.


def tokenised(pieces: Callable[[], Pieces], source: str, key: str, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of a text, from the cache if it has the key, which must change whenever the text does.

    `pieces` starts reading the text: if the key is not cached, and again if the first cache folder fails. `source`
    describes the text in the manifest. DtkError if there is no text, or it cannot be read, tokenised or cached.
    """
    dtype = token_dtype(tokenizer.vocab_size)

    def build(writer: Writer) -> dict[str, Any]:
        digest, size = hashlib.sha256(), 0
        end = np.array([] if tokenizer.separator is None else [tokenizer.separator], dtype=dtype)
        for text, last in pieces():
            digest.update(text)
            size += len(text)
            writer.append(tokenizer.encode(text))
            if last:
                writer.append(end)
        _errors.refuse({"no_text": not size}, source=source)
        return {"source": source, "bytes": size, "sha256": digest.hexdigest(), "tokenizer": tokenizer.identity}

    name = hashlib.sha256(repr((_FORMAT, key, tokenizer.identity)).encode()).hexdigest()
    stored = cached(name, dtype, build)
    about = {**stored.about, "source": source, "tokens": len(stored.values)}
    return Tokens(ids=stored.values, vocab_size=tokenizer.vocab_size, about=about)


def corpus_tokens(corpus: Corpus, tokenizer: Tokenizer) -> Tokens:
    """Return `tokenised` for files, with their names, sizes and times as the key."""
    return tokenised(corpus.pieces, corpus.source, corpus.key(), tokenizer)


def token_file(config: TokensData) -> Tokens:
    """Memory-map a flat binary file of ids in native byte order, or an array that `numpy.save` wrote.

    All ids of a file up to 64 MiB are checked; of a larger one 64 chunks of 1 MiB spread over it, and the recorded hash
    then covers these and the size. DtkError if the file is missing, has another dtype, or an id outside the vocabulary.
    """
    path = Path(config.path).expanduser()
    _errors.refuse({"no_file": not path.is_file()}, path=config.path)
    with refused(f"cannot read {path}"):
        size = path.stat().st_size
        ids = _map(path, size, config)
    about = {"source": str(path), "bytes": size, "tokens": len(ids), **_checked(ids, config)}
    return Tokens(ids=ids, vocab_size=config.vocab_size, about=about)


def _map(path: Path, size: int, config: TokensData) -> np.ndarray:
    """Return the ids, one-dimensional and memory-mapped, in the dtype of the header or the configuration."""
    with path.open("rb") as file:
        has_header = file.read(len(_NPY)) == _NPY
    if has_header:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise _errors("npy", path=path, why=error) from None
        rules = {
            "shape": array.dtype.kind not in "iu" or not array.size or not array.flags.c_contiguous,
            "dtype": config.dtype not in ("auto", array.dtype.name),
        }
        _errors.refuse(rules, path=path, array=array, shape=str(list(array.shape)), dtype=config.dtype)
        return np.asarray(array).view(np.ndarray).reshape(-1)
    name = config.dtype if config.dtype != "auto" else "uint16" if config.vocab_size <= 1 << 16 else "uint32"
    dtype = np.dtype(name)
    _errors.refuse({"size": not size or size % dtype.itemsize}, path=path, size=size, name=name)
    ids = np.asarray(np.memmap(path, dtype=dtype, mode="r")).view(np.ndarray)
    head = ids[: _CHUNK_BYTES // 8 * 8]
    for wider in (np.dtype(np.int64), np.dtype(np.uint32)):
        parts = wider.itemsize // dtype.itemsize
        if parts < 2 or len(head) < _FEW_IDS * parts or len(head) % parts:
            continue
        # Ids below vocab_size leave the upper bytes of a wider dtype in a known range: mostly 0 at every second place
        # (or three of four), which never occurs in text.
        wide = head.view(wider)
        if int(wide.max()) < config.vocab_size and int(wide.min()) >= 0 and int(head[::parts].max()) > 0:
            raise _errors("wider", path=path, name=name, bits=8 * wider.itemsize, wider=wider.name)
    return ids


def _checked(ids: np.ndarray, config: TokensData) -> dict[str, str]:
    """Check the ids; return the hash of the checked part, and which part that was if it was not everything."""
    step = _CHUNK_BYTES // ids.itemsize
    starts = np.arange(0, len(ids), step)
    whole = len(starts) <= _CHECKED_CHUNKS
    if not whole:
        starts = np.linspace(0, len(ids) - step, _CHECKED_CHUNKS).astype(np.int64)
    digest = hashlib.sha256(b"" if whole else str(len(ids)).encode())
    for start in starts:
        chunk = ids[start : start + step]
        digest.update(chunk.data)
        smallest, largest, vocab_size = int(chunk.min()), int(chunk.max()), config.vocab_size
        rules = {"negative": smallest < 0, "large": largest >= vocab_size}
        _errors.refuse(rules, path=config.path, smallest=smallest, largest=largest, vocab_size=vocab_size)
    chunks = f"size and {_CHECKED_CHUNKS} chunks of {_CHUNK_BYTES} bytes"
    return {"sha256": digest.hexdigest(), **({} if whole else {"sha256_of": chunks})}


class LanguageDataset(Dataset):
    """Windows [sequence_length + 1] of a stream: inputs all but the last token, targets all but the first.

    The last validation_fraction of the windows are held out; training ends a token earlier, so no target is shared.
    DtkError if the stream is too short for one window of training and one of validation.
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
