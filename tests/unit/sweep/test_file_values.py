"""Values as overrides: spelled as W&B's agent does, and refused where they would be read as something else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dtk.config.overrides import parse
from dtk.errors import DtkError
from dtk.sweep.file import plain, spelled


def test_values_are_spelled_as_the_agent_does():
    assert spelled("optimizer.lr", 1e-05) == "optimizer.lr=1e-05"
    assert spelled("optimizer.lr", "1e-5") == "optimizer.lr=1e-5"
    assert spelled("train.compile", True) == "train.compile=True"
    assert spelled("optimizer.betas", [0.9, 0.95]) == "optimizer.betas=[0.9, 0.95]"
    assert spelled("tracker.tags", ["a", "b"]) == "tracker.tags=['a', 'b']"
    assert spelled("data.path", "/data/x-1.txt") == "data.path=/data/x-1.txt"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "null"),
        ([1, None], "null"),
        ({"a": 1}, "dictionary"),
        ([{"a": 1}], "dictionary"),
        (float("inf"), ".inf"),
        ([1.0, float("-inf")], "-.inf"),
        (float("nan"), ".nan"),
        ("a,b", "several values"),
        ("true", "read as True"),
        ("a=b", "command line"),
        ("[1, 2", "command line"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(value: Any, why: str) -> None:
    with pytest.raises(DtkError) as refused:
        spelled("data.path", value)
    assert why in str(refused.value) and "data.path" in str(refused.value)


def test_numpys_values_are_plain() -> None:
    assert type(plain(np.float64(0.5))) is float and type(plain(np.int64(3))) is int
    assert spelled("seed", np.int64(3)) == "seed=3"
    assert plain("text") == "text" and plain([1, 2]) == [1, 2]


@given(st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100, deadline=None)
def test_a_number_comes_back_as_it_was(value: Any) -> None:
    read = parse(spelled("train.steps", value)).value()
    assert read == value and type(read) is type(value)
