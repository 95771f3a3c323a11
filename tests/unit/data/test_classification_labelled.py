"""Tables of labelled text, and windows of packages that do not overlap."""

from pathlib import Path

import numpy as np
import pytest

from dtk.data.classification import (
    EMBEDDED_CLASSES,
    check_table,
    package_corpora,
    package_windows,
    table_rows,
)
from dtk.data.corpus import text_corpus
from dtk.data.tokenizer import ByteTokenizer
from dtk.errors import DtkError


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", '\ufefflabel,text\n1,"a, b"\nx,"c\nd"\n'),
        ("t.tsv", "text\tlabel\nmore\na, b\t1\n"),
        ("t.jsonl", '{"text": "a, b", "label": 1}\n\n{"text": "c\\nd", "label": "x", "id": 7}\n'),
    ],
)
def test_rows_are_read_in_order(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    if name == "t.tsv":  # The second line has no label.
        with pytest.raises(DtkError, match="line 2: needs a text and a label"):
            list(table_rows(path))
        return
    assert list(table_rows(path)) == [("1", "a, b"), ("x", "c\nd")]


def test_a_cell_may_be_longer_than_csv_allows_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"text,label\n{'a' * 200_000},x\n")
    assert [len(text) for _, text in table_rows(path)] == [200_000]


@pytest.mark.parametrize("label", ["null", "[1]", '{"a": 1}'])
def test_a_label_is_one_value(tmp_path: Path, label: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"text": "a", "label": {label}}}\n')
    with pytest.raises(DtkError, match="line 1: needs a text and a label, has text, label"):
        list(table_rows(path))


def test_what_cannot_be_a_table_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("text,label\n")
    for path, message in ((tmp_path / "none.csv", "no such file"), (tmp_path / "t.txt", "not a table")):
        with pytest.raises(DtkError, match=message):
            check_table(path)


def test_windows_do_not_overlap_and_small_packages_are_left_out(tmp_path: Path) -> None:
    packages = {}
    for name, letters in (("a", "abcdefghijklmnop"), ("b", "ABCDEFGHIJKLMNOP"), ("c", "xy")):
        (tmp_path / f"{name}.txt").write_text(letters)
        packages[name] = text_corpus(str(tmp_path / f"{name}.txt"))
    windows = list(package_windows(packages, ByteTokenizer(), 4, 3))
    assert [name for name, _ in windows] == ["a"] * 3 + ["b"] * 3
    texts = [bytes(np.asarray(ids)).decode() for _, ids in windows]
    assert len(set("".join(texts))) == 24 and all(text.lower() in "abcd efgh ijkl mnop" for text in texts)
    with pytest.raises(DtkError, match="fewer than two standard-library packages have 5 windows of 4 tokens"):
        list(package_windows(packages, ByteTokenizer(), 4, 5))


def test_the_largest_packages_have_source_of_their_own() -> None:
    packages = package_corpora()
    assert len(packages) == EMBEDDED_CLASSES and list(packages) == sorted(packages)
    assert all(corpus.files and not name.startswith("_pydoc") for name, corpus in packages.items())
    assert "encodings" not in packages
