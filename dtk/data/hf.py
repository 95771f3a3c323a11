"""Text of a Hugging Face dataset (extra `hf`): a local folder or file, or a name on the hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnostics.contract.files import table_beside
from dtk.config.schema import HFData
from dtk.data.corpus import text_corpus
from dtk.data.network import unreachable
from dtk.data.tokenizer import Tokenizer
from dtk.data.tokens import Tokens, tokenised
from dtk.errors import Errors
from dtk.extras import load, require

_errors = Errors(__file__)
_FORMATS: dict[str, str] = table_beside(__file__)["formats"]
_ROWS = 1000  # Chosen: rows read at a time, the default of `Dataset.map`.


def hf_tokens(config: HFData, tokenizer: Tokenizer) -> Tokens:
    """Return a column of a split as a token stream; each row is a document.

    A local dataset is identified by its files, so the package is not needed once its tokens are cached. DtkError if
    package, data, split or column are missing, or there is no text.
    """
    path, dataset = Path(config.path).expanduser(), None
    if path.exists():
        files = text_corpus(config.path).files
        key = repr([(file.name, file.size_bytes, file.mtime_ns) for file in files]) + str(path.resolve())
    elif path.is_absolute() or path.suffix in _FORMATS or config.path.count("/") > 1 or config.path[0] == ".":
        raise _errors("no_dataset", path=config.path)
    else:
        dataset = _load(config)
        key = dataset._fingerprint

    def pieces() -> Iterator[tuple[bytes, bool]]:
        loaded = _load(config) if dataset is None else dataset
        if (name := config.text_field) not in loaded.column_names:
            raise _errors("no_column", path=config.path, column=repr(name), names=", ".join(loaded.column_names))
        for rows in loaded.select_columns([config.text_field]).iter(batch_size=_ROWS):
            for text in rows[config.text_field]:
                if not isinstance(text, str):
                    raise _errors("no_text", path=config.path, column=repr(name), kind=type(text).__name__)
                yield text.encode("utf-8", "replace"), True

    identity = repr(("hf", key, config.split, config.text_field))
    return tokenised(pieces, f"{config.path} ({config.split})", identity, tokenizer)


def _load(config: HFData) -> Any:
    path = Path(config.path).expanduser()
    if not path.exists() and unreachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co")):
        # The package reads this at import: it then uses only its cache, without minutes of retries.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    require("datasets", "data=hf", "hf")
    datasets = load("datasets")
    datasets.disable_progress_bars()
    try:
        if path.is_file():
            if path.suffix not in _FORMATS:
                raise ValueError(f"a file must end in one of {', '.join(_FORMATS)}")
            options = {"delimiter": "\t"} if path.suffix == ".tsv" else {}
            files = {config.split.split("[")[0]: str(path)}
            return datasets.load_dataset(_FORMATS[path.suffix], data_files=files, split=config.split, **options)
        if (path / "dataset_dict.json").exists():
            return datasets.load_from_disk(str(path))[config.split]
        if (path / "state.json").exists():
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(str(path) if path.exists() else config.path, split=config.split)
    except Exception as error:  # The package raises its own, pyarrow's and network errors.
        row = "damaged" if path.exists() else "unreachable"
        raise _errors(row, split=repr(config.split), path=config.path, why=str(error)) from None
