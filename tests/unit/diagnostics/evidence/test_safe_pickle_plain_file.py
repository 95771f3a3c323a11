"""Files of plain values: both forms give the same, and whatever is wrong ends as one ValueError."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits, TooLargeError
from diagnostics.evidence.safe_pickle import load_plain

VALUE = {"a": [1, 2.5, "x"], "b": {"c": None}}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data", [json.dumps(VALUE).encode(), pickle.dumps(VALUE), gzip.compress(json.dumps(VALUE).encode(), mtime=0)]
)
def test_every_form_gives_the_same_value(tmp_path: Path, data: bytes) -> None:
    assert load_plain(write(tmp_path, data), Limits(), lambda value: value, "dump") == VALUE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b'{"a"', "damaged JSON"),
        (b'{"a": 1e', "damaged JSON"),
        (pickle.dumps([1]), "a list where a dump is a dict"),
        (pickle.dumps(VALUE)[:-9], r"\w"),
    ],
)
def test_damage_is_one_value_error(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as problem:
        load_plain(write(tmp_path, data), Limits(), lambda value: value, "dump")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("problem", [TypeError, OverflowError, MemoryError, AttributeError, RecursionError])
def test_what_building_raises_over_odd_values_is_damage(tmp_path: Path, problem: type[Exception]) -> None:
    def build(value: dict[str, Any]) -> None:
        raise problem

    with pytest.raises(ValueError, match=r"damaged snapshot|nested over 64 levels"):
        load_plain(write(tmp_path, pickle.dumps(VALUE)), Limits(), build, "snapshot")


def test_a_large_file_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError, match="limit-scale"):
        load_plain(write(tmp_path, b"{" + b" " * 4096), Limits(whole_bytes=1024), lambda value: value, "dump")
