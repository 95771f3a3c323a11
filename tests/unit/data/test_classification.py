import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.config.schema import ClassificationData
from dtk.data.build import build_dataset
from dtk.data.classification import EMBEDDED_CLASSES, split_by_class
from dtk.errors import DtkError


def table(path: Path, rows: list[tuple[str, str]]) -> ClassificationData:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(f'"{text}"{mark}{label}\n' for text, label in [("text", "label"), *rows]))
    return ClassificationData(path=str(path), sequence_length=8, validation_fraction=0.25)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_table_is_padded_truncated_and_shifted(tmp_path: Path, suffix: str) -> None:
    rows = [("ab", "no"), ("a longer text", "yes"), ("cd, e", "no"), ("x\ny", "yes")]
    dataset = build_dataset(table(tmp_path / f"t{suffix}", rows))
    assert (dataset.classes, dataset.vocab_size, dataset.fixed_targets) == (2, 257, 1)
    assert dataset.train_size + dataset.validation_size == 4 and dataset.validation_size == 2
    labels = {}
    for read, size in ((dataset.train, dataset.train_size), (dataset.validation, dataset.validation_size)):
        batch = read(np.arange(size))
        assert batch.inputs.shape == (size, 8) and batch.targets.shape == (size,)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        for row, target in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            text = bytes(i - 1 for i in row if i).decode()
            assert row == [byte + 1 for byte in text.encode()] + [0] * (8 - len(text))
            labels[text] = dataset.describe()["labels"][target]
    assert labels == {text[:8]: label for text, label in rows}


def test_numeric_labels_keep_their_order(tmp_path: Path) -> None:
    dataset = build_dataset(table(tmp_path / "t.csv", [(f"text {i}", str(i % 12)) for i in range(48)]))
    assert dataset.describe()["labels"] == [str(i) for i in range(12)]


@pytest.mark.parametrize("uneven", ["--5", "5-", "1.5", "9" * 5000, "-"])
def test_labels_of_which_one_is_no_number_are_sorted_as_names(tmp_path: Path, uneven: str) -> None:
    labels = ["10", "2", uneven]
    dataset = build_dataset(table(tmp_path / "t.csv", [(f"text {i}", labels[i % 3]) for i in range(12)]))
    assert dataset.describe()["labels"] == sorted(labels)


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=200),
    variety=st.integers(1, 300),
    fraction=st.sampled_from([0.0, 0.05, 0.25, 0.5]),
)
@settings(deadline=None)
def test_split_is_disjoint_balanced_and_keeps_duplicates_together(
    labels: list[int], variety: int, fraction: float
) -> None:
    classes = np.array(labels)
    hashes = np.arange(len(labels)) * 2654435761 % variety
    train, kept = split_by_class(classes, hashes, fraction)
    assert sorted([*train, *kept]) == list(range(len(labels)))
    pairs = [{(int(classes[i]), int(hashes[i])) for i in part} for part in (train, kept)]
    assert not pairs[0] & pairs[1]
    for label in set(labels):
        mine, of_class = int((classes[kept] == label).sum()), labels.count(label)
        assert mine <= (max(1, round(of_class * fraction)) if fraction and of_class > 1 else 0)
        if len({int(h) for h in hashes[classes == label]}) == of_class > 1 and fraction:
            assert mine == max(1, round(of_class * fraction))
        assert (classes[train] == label).any()


def test_embedded_task() -> None:
    config = ClassificationData(sequence_length=64, samples_per_class=40, validation_fraction=0.25)
    dataset = build_dataset(config)
    assert dataset.classes == EMBEDDED_CLASSES
    train, batch = (
        dataset.train(np.arange(dataset.train_size)),
        dataset.validation(np.arange(dataset.validation_size)),
    )
    assert torch.bincount(train.targets).max() <= 40 and torch.bincount(train.targets).min() >= 30
    assert torch.bincount(batch.targets, minlength=EMBEDDED_CLASSES).max() == 10
    assert train.inputs.min() > 0 and train.inputs.max() <= 256
    assert not {tuple(row) for row in train.inputs.tolist()} & {tuple(row) for row in batch.inputs.tolist()}
    assert "asyncio" in dataset.describe()["labels"] and dataset.describe()["synthetic"] is False
    again = build_dataset(config)
    assert torch.equal(again.train(np.arange(5)).inputs, train.inputs[:5])


def test_embedded_task_can_be_learnt() -> None:
    """Counts of bytes tell the packages apart better than chance: the label belongs to the window."""
    dataset = build_dataset(ClassificationData(sequence_length=256, samples_per_class=100, validation_fraction=0.2))
    train, batch = (
        dataset.train(np.arange(dataset.train_size)),
        dataset.validation(np.arange(dataset.validation_size)),
    )

    def counts(inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(inputs, 257).sum(1).float().sqrt()

    centres = torch.stack([counts(train.inputs[train.targets == c]).mean(0) for c in range(EMBEDDED_CLASSES)])
    guess = torch.cdist(counts(batch.inputs), centres).argmin(1)
    assert (guess == batch.targets).float().mean() > 2 / EMBEDDED_CLASSES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,class\na,b\n", "no columns text and label: its first line is"),
        ("t.csv", "", "no columns text and label"),
        ("t.csv", "text,label\n", "holds no text"),
        ("t.csv", "label,text\na\n", "line 2: needs a text and a label"),
        ("t.csv", "text,label\na,x\nb,x\n", "2 samples of 1 classes"),
        ("t.csv", "text,label\na,x\nb,y\n", "two or more samples of one class"),
        ("t.csv", b"text,label\n\xe9,x\n", "is not UTF-8 text"),
        ("t.jsonl", '{"text": "a"}\n', "line 1: needs a text and a label, has text"),
        ("t.jsonl", '{"text": "a", "label": 1}\nnot json\n', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("t.parquet", "x", "is not a table of labelled text"),
    ],
)
def test_wrong_tables_are_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DtkError, match=message) as caught:
        build_dataset(ClassificationData(path=str(path), sequence_length=8))
    assert "\n" not in str(caught.value)


def test_missing_table_and_too_large_embedded_task() -> None:
    with pytest.raises(DtkError, match="no such file"):
        build_dataset(ClassificationData(path="/not/here.csv"))
    with pytest.raises(DtkError, match="fewer than two standard-library packages"):
        build_dataset(ClassificationData(samples_per_class=10**6))


def test_too_many_labels(tmp_path: Path) -> None:
    config = table(tmp_path / "t.csv", [("text", f"{i / 7}") for i in range(10_001)])
    with pytest.raises(DtkError, match="more than 10000 labels"):
        build_dataset(config)
