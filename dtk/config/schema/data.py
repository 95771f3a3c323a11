"""Keys of the `data` section: one dataclass per source."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What every data source has."""

    name: str
    sequence_length: int = 128
    """Tokens per sample (shape of one sample: [sequence_length])."""
    validation_fraction: float = 0.05
    """Share held out for evaluation; never seen in training."""

    @property
    def unit(self) -> str:
        """Return what speed is counted in."""
        return "token"


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
class CustomData(DataConfig):
    """Your own `torch.utils.data.Dataset` with a length; a sample is a pair (inputs, targets)."""

    name: Literal["custom"] = "custom"
    _target_: str
    """Import path of the class, for example `my_package.MyDataset`; allow it by `allow_targets`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor, checked against its signature."""
    sequence_length: int = 1
    """Tokens per sample, for speed in tokens; 1 = speed is counted in samples."""
    workers: int = 0
    """Processes per rank that read samples ahead; 0 = the rank reads them itself."""

    @property
    def unit(self) -> str:
        """Return what speed is counted in."""
        return "sample" if self.sequence_length == 1 else "token"


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticData(DataConfig):
    """Random tokens. For measuring speed and memory only: the loss means nothing."""

    name: Literal["synthetic"] = "synthetic"
    vocab_size: int = 256
    samples: int = 100_000
