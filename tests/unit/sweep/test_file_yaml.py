"""The YAML of a sweep file: bounded, and nothing that YAML lets pass in silence."""

from pathlib import Path

import pytest

from dtk.errors import DtkError
from dtk.sweep.file import MOST_BYTES, load
from tests.unit.sweep.files import write


def test_keys_are_texts_and_values_are_yamls(tmp_path: Path) -> None:
    text = "method: grid\n1: one\nparameters:\n  seed: {values: [1, 2]}\n  lr: 1e-3\n"
    parameters = {"seed": {"values": [1, 2]}, "lr": "1e-3"}
    assert load(write(tmp_path, text)) == {"method": "grid", "1": "one", "parameters": parameters}


def test_a_merge_may_stand_twice(tmp_path: Path) -> None:
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n"
    assert load(write(tmp_path, text))["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1\na: 2\n", 'line 2 - not valid YAML (the key "a" is there twice)'),
        ("x:\n  - {k: 1, k: 2}\n", 'the key "k" is there twice'),
        ("- a\n", "not a mapping of keys"),
        ("", "not a mapping of keys"),
        ("a: [\n", "line 2"),
        ("a: !!python/object:os.system {}\n", "not valid YAML"),
        ("a: " + "{b: " * 30 + "1" + "}" * 30, "nested over 20 levels"),
        ("a: \x00", "not valid YAML"),
        ("#" * (MOST_BYTES + 1), "more than 300,000 bytes"),
    ],
)
def test_what_is_no_sweep_file_is_one_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(DtkError) as refused:
        load(write(tmp_path, text))
    line = str(refused.value)
    assert what.replace(" - ", "") in line.replace(": ", "").replace(" - ", "") or what in line
    assert "sweep.yaml" in line and "\n" not in line


def test_a_file_that_is_absent_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="cannot read"):
        load(tmp_path / "none.yaml")
    with pytest.raises(DtkError, match="is a folder"):
        load(tmp_path)
