"""Text classification: fixed-length samples with one class each, split with balanced classes, from the user's table or
windows of the standard library's packages. Ids are those of the tokenizer + 1, as 0 is padding. Samples are cached as
rows [class, content hash, token ids ...] of uint32.
"""

import csv
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dtk.config.schema import ClassificationData
from dtk.data.cache import Cached, Writer, cached
from dtk.data.corpus import Corpus, stdlib_corpus, stdlib_root
from dtk.data.dataset import Batch, Dataset, to_batch
from dtk.data.sampler import permute
from dtk.data.tokenizer import Tokenizer, build_tokenizer
from dtk.errors import DtkError, Errors

PADDING_ID = 0  # Token id that pads a sample to sequence_length.

_ID_SHIFT = 1  # Added to the tokenizer's ids, as PADDING_ID is taken.
_HEAD = 2  # Columns of a row before its ids: the label, and a CRC-32 of the ids.
_MOST_CLASSES = 10_000  # Chosen: more distinct labels are rather ids or texts.
_FORMAT = 1  # Part of every key; increase it when the same table yields different rows.
_NUMBER = re.compile(r"-?\d{1,100}")  # A label that is an integer; longer ones count as names.
_errors = Errors(__file__)
EMBEDDED_CLASSES = 8  # Number of packages in the embedded task: fixed, so that `model.classes` can be fixed too.

_TABLES = {"encodings", "pydoc_data"}
"""Generated tables rather than source code; their first bytes would give them away."""

_SUFFIXES = (".csv", ".tsv", ".jsonl")


class ClassificationDataset(Dataset):
    """Samples with one class each; targets are [batch].

    Args:
        rows: uint32 [samples, 2 + sequence_length], memory-mapped.
        classes: class of each stored label, int64 [labels].
        split: indices of the training rows and of the held-out rows.
        about: description for the manifest; `labels` are the names of classes 0, 1, ..., if there are few.
    """

    def __init__(
        self, rows: np.ndarray, classes: np.ndarray, split: tuple[np.ndarray, np.ndarray], about: dict[str, Any]
    ) -> None:
        self.train_size, self.validation_size = map(len, split)
        self.vocab_size, self.classes, self.fixed_targets = about["vocab_size"], len(classes), 1
        self._rows, self._classes, self._order, self._about = rows, classes, np.concatenate(split), about

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return inputs [batch, sequence_length] and targets [batch]."""
        block = self._rows[self._order[numbers]]
        return to_batch(block[:, _HEAD:], self._classes[block[:, 0]])


def classification_dataset(config: ClassificationData) -> ClassificationDataset:
    """Build the dataset from the user's table, or from the embedded task if no path is given; DtkError if the table is
    invalid, there are too few samples or classes, or samples_per_class < 2.
    """
    tokenizer = build_tokenizer(config.tokenizer)
    source = _embedded(config, tokenizer) if config.path is None else _table(config, config.path, tokenizer)
    stored = _cached_rows(source, config, tokenizer)
    rows = stored.values.reshape(-1, _HEAD + config.sequence_length)
    names: list[str] = stored.about["labels"]
    split = split_by_class(rows[:, 0], rows[:, 1], config.validation_fraction)
    if len(names) < 2 or (config.validation_fraction and not len(split[1])):
        what = f"{stored.about['source']} has {len(rows)} samples of {len(names)} classes"
        raise DtkError(what, "it needs two or more classes, and two or more samples of one class")
    # Numeric labels sort as numbers, so that label 10 is class 10, not class 2.
    sort_keys: list[Any] = list(map(int, names)) if all(map(_NUMBER.fullmatch, names)) else names
    order = sorted(range(len(names)), key=sort_keys.__getitem__)
    classes = np.empty(len(names), dtype=np.int64)
    classes[order] = np.arange(len(names))
    about = {"name": config.name, **stored.about, "tokens": len(rows) * config.sequence_length}
    about |= {"vocab_size": tokenizer.vocab_size + _ID_SHIFT, "classes": len(names)}
    about["labels"] = [names[i] for i in order] if len(names) <= 100 else None
    return ClassificationDataset(rows, classes, split, about)


def split_by_class(labels: np.ndarray, hashes: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Return row indices (training, held out), each ascending; the fraction applies to every class.

    Rows are ordered by the hash of their content, so the split depends on content alone, and equal rows of a class are
    never split. A class with a single row is used for training.
    """
    order = np.lexsort((np.arange(len(labels)), hashes, labels))
    sorted_labels, sorted_hashes = labels[order], hashes[order]
    starts = np.flatnonzero(np.r_[True, sorted_labels[1:] != sorted_labels[:-1]])
    is_held_out = np.zeros(len(labels), dtype=bool)
    for start, end in zip(starts, np.r_[starts[1:], len(labels)], strict=True):
        cut = start + (max(1, round((end - start) * fraction)) if fraction and end - start > 1 else 0)
        while cut > start and cut < end and sorted_hashes[cut] == sorted_hashes[cut - 1]:
            cut -= 1
        is_held_out[order[start:cut]] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


class _Source(NamedTuple):
    samples: Callable[[], Iterator[tuple[str, np.ndarray]]]
    name: str
    """Name for messages and the manifest."""
    size_bytes: int
    key: object
    """Changes whenever the samples do."""


def _embedded(config: ClassificationData, tokenizer: Tokenizer) -> _Source:
    """Return the task: which standard-library package does this window of source code come from?"""
    if config.samples_per_class < 2:
        raise DtkError(f"data.samples_per_class={config.samples_per_class}", "it must be 2 or more: one is held out")
    packages = package_corpora()
    listing = [(name, corpus.key()) for name, corpus in packages.items()]
    name = next(iter(packages.values())).source + ", by package" if packages else "the standard library"
    size_bytes = sum(file.size_bytes for corpus in packages.values() for file in corpus.files)
    samples = partial(package_windows, packages, tokenizer, config.sequence_length, config.samples_per_class)
    return _Source(samples, name, size_bytes, (listing, config.samples_per_class))


def _table(config: ClassificationData, name: str, tokenizer: Tokenizer) -> _Source:
    path = Path(name).expanduser()
    check_table(path)
    status = path.stat()
    # These bytes hold more than sequence_length tokens: a very long cell is not tokenised to its end.
    longest = 64 * config.sequence_length

    def samples() -> Iterator[tuple[str, np.ndarray]]:
        for label, text in table_rows(path):
            yield label, tokenizer.encode(text[:longest].encode("utf-8", "replace"))[: config.sequence_length]

    key = (path.suffix, status.st_size, status.st_mtime_ns, str(path.resolve()))
    return _Source(samples, str(path), status.st_size, key)


def _cached_rows(source: _Source, config: ClassificationData, tokenizer: Tokenizer) -> Cached:
    def build(writer: Writer) -> dict[str, Any]:
        labels: dict[str, int] = {}
        digest, tokens = hashlib.sha256(), 0
        for label, ids in source.samples():
            row = np.full(_HEAD + config.sequence_length, PADDING_ID, dtype=np.uint32)
            row[_HEAD : _HEAD + len(ids)] = ids
            row[_HEAD : _HEAD + len(ids)] += _ID_SHIFT
            row[0] = labels.setdefault(label, len(labels))
            row[1] = zlib.crc32(row[_HEAD:].data)
            if len(labels) > _MOST_CLASSES:
                raise DtkError(f"{source.name} has more than {_MOST_CLASSES} labels", "is `label` really a class?")
            writer.append(row)
            digest.update(label.encode("utf-8", "replace") + b"\0" + row[_HEAD:].tobytes())
            tokens += len(ids)
        if not tokens:
            raise DtkError(f"{source.name} holds no text")
        about = {"source": source.name, "bytes": source.size_bytes, "sha256": digest.hexdigest()}
        return {**about, "labels": list(labels), "unpadded_tokens": tokens, "tokenizer": tokenizer.identity}

    key = repr(("rows", _FORMAT, source.key, config.sequence_length, tokenizer.identity))
    return cached(hashlib.sha256(key.encode()).hexdigest(), np.dtype(np.uint32), build)


def table_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of each row of a .csv, .tsv or .jsonl file, UTF-8; call `check_table` first.

    DtkError if it cannot be read, lacks a column, has an invalid row or is not UTF-8.
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
