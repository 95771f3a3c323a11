"""Conversion of UTF-8 text to token ids: bytes, GPT-2's byte pairs (tiktoken), or a `tokenizer.json`. Vocabularies are
loaded at the first `encode`, so cached tokens need none.
"""

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from diagnostics.contract.formatting import typed
from diagnostics.contract.suggest import did_you_mean
from dtk.data.network import bounded, unreachable
from dtk.errors import Errors
from dtk.extras import load, require

_errors = Errors(__file__)
_GPT2_FILES = tuple(
    f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}" for name in ("vocab.bpe", "encoder.json")
)
_GPT2_CACHE = str(Path(tempfile.gettempdir()) / "data-gym-cache")
_GPT2_DOWNLOAD_S = 60.0  # Chosen: timeout for 1.5 MB; without a network the download may block for much longer.
_INSTEAD = ", or use data.tokenizer=byte"


class Tokenizer(Protocol):
    """Converts text to ids below `vocab_size`."""

    identity: str
    """Identifies the tokenizer exactly; part of the key of cached tokens."""
    vocab_size: int
    """Number of ids."""
    separator: int | None
    """Id written after each document; None if the vocabulary has none."""

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of UTF-8 text, [tokens], with dtype `token_dtype(vocab_size)`."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids; invalid UTF-8 is replaced."""


class ByteTokenizer:
    """Ids 0..255 are the bytes themselves. Byte 0, which does not occur in text, ends a document."""

    identity = "byte"
    vocab_size = 256
    separator: int | None = 0

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids, uint8 [bytes]; a view of `text`, no copy."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return bytes(ids).decode("utf-8", "replace")


class GPT2Tokenizer:
    """GPT-2's byte-pair encoding (Radford et al. 2019), by tiktoken. `<|endoftext|>` ends a document."""

    identity = "gpt2"
    vocab_size = 50257
    separator: int | None = 50256

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids, uint16 [tokens]; DtkError if tiktoken or its files are missing and cannot be loaded."""
        ids = self._encoding.encode_ordinary(text.decode("utf-8", "replace"))
        return np.array(ids, dtype=np.uint16)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return str(self._encoding.decode(ids, errors="replace"))

    @functools.cached_property
    def _encoding(self) -> Any:
        """Return tiktoken's encoding; tiktoken downloads without a timeout, so check first that the server answers."""
        require("tiktoken", "data.tokenizer=gpt2", "hf", _INSTEAD)
        tiktoken = load("tiktoken")
        folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", _GPT2_CACHE))
        names = (hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest() for url in _GPT2_FILES)
        is_cached = folder and all((Path(folder) / name).is_file() for name in names)
        if not is_cached and (reason := unreachable(_GPT2_FILES[0])):
            raise _errors("not_cached", why=reason)
        try:
            return bounded(lambda: tiktoken.get_encoding("gpt2"), _GPT2_DOWNLOAD_S)
        except (OSError, ValueError, AssertionError) as error:
            raise _errors("not_loaded", why=error) from None


class FileTokenizer:
    """A `tokenizer.json` of the package `tokenizers`; `<|endoftext|>` ends a document if the vocabulary has it."""

    def __init__(self, encoder: Any, identity: str, vocab_size: int) -> None:
        self._encoder = encoder
        self.identity = identity
        self.vocab_size = vocab_size
        self.separator: int | None = encoder.token_to_id("<|endoftext|>")

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids, [tokens], without special tokens."""
        encoded = self._encoder.encode(text.decode("utf-8", "replace"), add_special_tokens=False)
        return np.array(encoded.ids, dtype=token_dtype(self.vocab_size))

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._encoder.decode(ids))


def build_tokenizer(name: str) -> Tokenizer:
    """Build the tokenizer that `data.tokenizer` names: `byte`, `gpt2` or the path of a tokenizer.json.

    DtkError if there is no such name or file, it is no tokenizer file, or the package is not installed.
    """
    if name == "byte":
        return ByteTokenizer()
    if name == "gpt2":
        return GPT2Tokenizer()
    path = Path(name).expanduser()
    if not path.is_file():
        given = str(typed(path))
        raise _errors("unknown", given=given, near=did_you_mean(given, ("byte", "gpt2")))
    require("tokenizers", "a tokenizer.json", "hf", _INSTEAD)
    tokenizers = load("tokenizers")
    try:
        content = path.read_bytes()
        encoder = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises a bare Exception for an unreadable file
        raise _errors("unusable", path=path, why=error) from None
    encoder.no_truncation()
    encoder.no_padding()
    # Ids may have gaps, so the number of entries is not an upper bound.
    vocab_size = max(encoder.get_vocab(with_added_tokens=True).values(), default=0) + 1
    return FileTokenizer(encoder, f"tokenizer.json {hashlib.sha256(content).hexdigest()}", vocab_size)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id."""
    return np.min_scalar_type(max(vocab_size - 1, 1))
