"""Token streams: a tokenised corpus from the cache, or a flat binary file of ids of the user's.

Both end as one memory-mapped array and what is to be known about it; neither imports torch.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dtk.config.schema import TokensData
from dtk.data.cache import Writer, cached
from dtk.data.corpus import Corpus
from dtk.data.tokenizer import Tokenizer, token_dtype
from dtk.errors import DtkError

_FORMAT = 1
"""Part of every key; raise it when the same text would give other tokens."""

_CHECKED_CHUNKS = 64
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """A stream of token ids."""

    ids: np.ndarray
    """Unsigned, [tokens], read-only, memory-mapped."""
    vocab_size: int
    about: dict[str, Any]
    """source, bytes, sha256, tokens, and what else belongs into the manifest."""


Pieces = Iterator[tuple[bytes, bool]]
"""UTF-8 text, and whether a document ends with it."""


def tokenised(pieces: Callable[[], Pieces], source: str, key: str, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of a text, from the cache if its key is found there.

    Args:
        pieces: starts reading the text. Called when the key is not cached, and once more when
            the first place to cache it fails.
        source: where the text comes from, for people.
        key: changes whenever the text does.
        tokenizer: turns it into ids; its separator ends each document.

    Raises:
        DtkError: there is no text, or it can not be read, tokenised or cached.
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
        if not size:
            raise DtkError(f"{source} holds no text")
        return {"source": source, "bytes": size, "sha256": digest.hexdigest(), "tokenizer": tokenizer.identity}

    name = hashlib.sha256(repr((_FORMAT, key, tokenizer.identity)).encode()).hexdigest()
    stored = cached(name, dtype, build)
    about = {**stored.about, "source": source, "tokens": len(stored.values)}
    return Tokens(ids=stored.values, vocab_size=tokenizer.vocab_size, about=about)


def corpus_tokens(corpus: Corpus, tokenizer: Tokenizer) -> Tokens:
    """`tokenised` for files; their names, sizes and times are the key."""
    return tokenised(corpus.pieces, corpus.source, corpus.key(), tokenizer)


def token_file(config: TokensData) -> Tokens:
    """Memory-map a flat binary file of ids in native byte order.

    Ids are checked in full up to 64 MiB; of a larger file in 64 chunks of 1 MiB spread over it, and
    the recorded hash is then of these chunks and the size.

    Raises:
        DtkError: no such file, its size is no multiple of the type, or an id is outside the vocabulary.
    """
    path = Path(config.path).expanduser()
    dtype = np.dtype(config.dtype)
    if not path.is_file():
        raise DtkError(f"no such token file: {config.path}", fix="data.path must name a binary file of token ids")
    try:
        size = path.stat().st_size
        if not size or size % dtype.itemsize:
            raise DtkError(f"{path} has {size} bytes", f"not a whole number of {config.dtype} ids", "check data.dtype")
        ids = np.asarray(np.memmap(path, dtype=dtype, mode="r")).view(np.ndarray)
    except OSError as error:
        raise DtkError(f"can not read {path}", error.strerror or str(error)) from None
    digest, whole = _check_ids(ids, config)
    about = {"source": str(path), "bytes": size, "sha256": digest, "tokens": len(ids)}
    if not whole:
        about["sha256_of"] = f"size and {_CHECKED_CHUNKS} chunks of {_CHUNK_BYTES} bytes"
    return Tokens(ids=ids, vocab_size=config.vocab_size, about=about)


def _check_ids(ids: np.ndarray, config: TokensData) -> tuple[str, bool]:
    """Hash of what was looked at, and whether that was everything."""
    step = _CHUNK_BYTES // ids.itemsize
    starts = np.arange(0, len(ids), step)
    whole = len(starts) <= _CHECKED_CHUNKS
    if not whole:
        starts = np.linspace(0, len(ids) - step, _CHECKED_CHUNKS).astype(np.int64)
    digest = hashlib.sha256(b"" if whole else str(len(ids)).encode())
    for start in starts:
        chunk = ids[start : start + step]
        digest.update(chunk.data)
        if (largest := int(chunk.max())) >= config.vocab_size:
            raise DtkError(
                f"{config.path} holds token id {largest}",
                f"data.vocab_size={config.vocab_size}",
                "raise data.vocab_size, or check data.dtype",
            )
    return digest.hexdigest(), whole
