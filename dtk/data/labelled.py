"""Sources of labelled text: the user's table, or windows of the standard library's packages."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtk.data.corpus import Corpus, stdlib_corpus, stdlib_root
from dtk.data.sampler import permute
from dtk.data.tokenizer import Tokenizer
from dtk.errors import DtkError, Errors

_errors = Errors(__file__)
EMBEDDED_CLASSES = 8  # Number of packages in the embedded task: fixed, so that `model.classes` can be fixed too.

_TABLES = {"encodings", "pydoc_data"}
"""Generated tables rather than source code; their first bytes would give them away."""

_SUFFIXES = (".csv", ".tsv", ".jsonl")


def table_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of each row of a .csv, .tsv or .jsonl file, UTF-8; call `check_table` first.

    Raises:
        DtkError: it cannot be read, lacks a column, has an invalid row or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _json_rows(file, path) if path.suffix == ".jsonl" else _separated_rows(file, path)
            for number, row in rows:
                label, text = row.get("label"), row.get("text")
                if not isinstance(text, str) or isinstance(label, (dict, list, type(None))):
                    keys = ", ".join(map(str, row)) or "nothing"
                    raise DtkError(f"{path} line {number}", f"needs a text and a label, has {keys}")
                yield str(label), text
    except UnicodeDecodeError:
        raise DtkError(f"{path} is not UTF-8 text", fix="convert it (iconv -t UTF-8)") from None
    except (OSError, csv.Error) as error:
        raise DtkError(f"cannot read {path}", str(error)) from None


def check_table(path: Path) -> None:
    """Check that the path can be a table; DtkError if the file is missing or has another suffix."""
    _errors.refuse({"no_file": not path.is_file(), "no_table": path.suffix not in _SUFFIXES}, path=path)


def package_windows(
    packages: dict[str, Corpus], tokenizer: Tokenizer, sequence_length: int, samples_per_class: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (package, token ids [sequence_length]): windows that do not overlap, chosen by a fixed permutation;
    DtkError if fewer than two packages have samples_per_class windows.
    """
    classes = 0
    for name, corpus in packages.items():
        ids = np.concatenate([tokenizer.encode(text) for text, _ in corpus.pieces()])
        windows = len(ids) // sequence_length
        if windows < samples_per_class:
            continue
        classes += 1
        for window in permute(np.arange(samples_per_class), windows, name):
            yield name, ids[window * sequence_length : (window + 1) * sequence_length]
    _errors.refuse({"few_windows": classes < 2}, samples=samples_per_class, length=sequence_length)


def package_corpora() -> dict[str, Corpus]:
    """Return the EMBEDDED_CLASSES packages of the standard library with the most source, sorted by name."""
    everything = stdlib_corpus()
    sizes: dict[str, int] = {}
    for file in everything.files:
        package, _, rest = file.name.partition("/")
        if rest and package not in _TABLES:
            sizes[package] = sizes.get(package, 0) + file.size_bytes
    largest = sorted(sizes, key=lambda package: (-sizes[package], package))[:EMBEDDED_CLASSES]
    return {name: stdlib_corpus(root=stdlib_root() / name) for name in sorted(largest)}


def _separated_rows(file: Any, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    lacking = not {"text", "label"} <= set(reader.fieldnames or ())
    _errors.refuse({"no_columns": lacking}, path=path, names=str(reader.fieldnames))
    for row in reader:
        yield reader.line_num, row


def _json_rows(file: Any, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DtkError(f"{path} line {number} is not JSON", str(error)) from None
        if not isinstance(row, dict):
            raise DtkError(f"{path} line {number} is not a JSON object")
        yield number, row
