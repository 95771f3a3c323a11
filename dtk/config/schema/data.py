"""Keys of the `data` section: one dataclass per source."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Keys of every data source."""

    name: str
    sequence_length: int = 128
    validation_fraction: float = 0.05

    @property
    def unit(self) -> str:
        """Return the unit in which speed is counted."""
        return "token"


@dataclass(frozen=True, kw_only=True, slots=True)
class StdlibData(DataConfig):
    """The Python standard library's source code: real text that exists on every machine."""

    name: Literal["stdlib"] = "stdlib"
    tokenizer: str = "byte"
    max_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextData(DataConfig):
    """Custom text: one file, or a folder that is searched for text files."""

    name: Literal["text"] = "text"
    path: str
    tokenizer: str = "byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensData(DataConfig):
    """A flat binary file of token ids, or an array that `numpy.save` wrote, memory-mapped."""

    name: Literal["tokens"] = "tokens"
    path: str
    dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = "auto"
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
    """Labelled text. Without a path the task is: which standard-library package does this source come from?"""

    name: Literal["classification"] = "classification"
    path: str | None = None
    tokenizer: str = "byte"
    samples_per_class: int = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomData(DataConfig):
    """A custom `torch.utils.data.Dataset` with a length; a sample is a pair (inputs, targets)."""

    name: Literal["custom"] = "custom"
    _target_: str
    arguments: dict[str, Any] = field(default_factory=dict)
    sequence_length: int = 1
    workers: int = 0

    @property
    def unit(self) -> str:
        """Return the unit in which speed is counted."""
        return "sample" if self.sequence_length == 1 else "token"


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticData(DataConfig):
    """Random tokens, for measuring speed and memory only: the loss is meaningless."""

    name: Literal["synthetic"] = "synthetic"
    vocab_size: int = 256
    samples: int = 100_000
