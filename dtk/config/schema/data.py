"""Keys of the `data` section: one dataclass per source."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What every data source has."""

    name: str
    sequence_length: int = 128
    """Tokens per sample (shape of one sample: [sequence_length])."""
    validation_fraction: float = 0.05
    """Share held out for evaluation; never seen in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StdlibData(DataConfig):
    """The Python standard library's own source: real text that is there on every machine."""

    name: Literal["stdlib"] = "stdlib"
    tokenizer: str = "byte"
    """`byte`, `gpt2` (tiktoken) or the path of a `tokenizer.json`."""
    max_bytes: int | None = None
    """Read at most this much of the corpus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextData(DataConfig):
    """Your own text: one file, or a folder that is searched for text files."""

    name: Literal["text"] = "text"
    path: str
    tokenizer: str = "byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensData(DataConfig):
    """A flat binary file of token ids, or an array that `numpy.save` wrote, memory-mapped."""

    name: Literal["tokens"] = "tokens"
    path: str
    dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = "auto"
    """Type of an id; auto = by the header of a .npy file, else uint16 for a vocabulary of up to 65,536, or uint32."""
    vocab_size: int = 50257


@dataclass(frozen=True, kw_only=True, slots=True)
class HFData(DataConfig):
    """A Hugging Face dataset (extra `hf`): a local folder or file, or a hub name."""

    name: Literal["hf"] = "hf"
    path: str
    split: str = "train"
    text_field: str = "text"
    tokenizer: str = "byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationData(DataConfig):
    """Labelled text. Without a path: which standard-library package does this source come from?"""

    name: Literal["classification"] = "classification"
    path: str | None = None
    """A .csv, .tsv or .jsonl file with the columns `text` and `label`."""
    tokenizer: str = "byte"
    samples_per_class: int = 500
    """Of the embedded task: windows taken from each of its packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticData(DataConfig):
    """Random tokens. For measuring speed and memory only: the loss means nothing."""

    name: Literal["synthetic"] = "synthetic"
    vocab_size: int = 256
    samples: int = 100_000
