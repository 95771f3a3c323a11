"""Small records of a run folder: read whole or from their end, and never an error."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.origins import Origins, dumps
from diagnostics.runs.records import (
    TAIL_BYTES,
    as_mapping,
    content,
    decoded,
    first_steps,
    last_metrics,
    made_again,
    mapping,
    number,
    objects,
    read_origins,
    reason,
    whole_number,
)


def metrics(folder: Path, *lines: str) -> str:
    path = folder / "metrics.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_a_json_object_is_read_and_everything_else_is_an_empty_one(tmp_path: Path) -> None:
    problems: list[str] = []
    path = tmp_path / "summary.json"
    assert mapping(str(path), problems) == {} and not problems, "an absent file is no problem"
    path.write_text('{"a": 1}')
    assert mapping(str(path), problems) == {"a": 1}
    path.write_text("[1]")
    assert mapping(str(path), problems) == {} and not problems
    for damaged in ("{", '{"a": ' * 100_000):
        path.write_text(damaged)
        assert mapping(str(path), problems) == {}
    assert len(problems) == 2 and all(
        problem.startswith("summary.json: ") and "\n" not in problem for problem in problems
    )


def test_what_is_no_regular_file_is_a_problem(tmp_path: Path) -> None:
    problems: list[str] = []
    os.mkfifo(tmp_path / "pipe")
    assert mapping(str(tmp_path / "pipe"), problems) == {} and mapping(str(tmp_path), problems) == {}
    assert last_metrics(str(tmp_path / "pipe"), problems) == {} and len(problems) == 3
    assert problems[0] == "pipe: not a regular file"


def test_a_file_that_no_record_has_the_size_of_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        content(str(tmp_path / "large"))


@given(st.floats(allow_nan=True) | st.integers(-9, 9) | st.text(max_size=5))
@settings(max_examples=60)
def test_what_python_writes_is_decoded(value: float | str) -> None:
    result = decoded(json.dumps({"x": value}).encode())["x"]
    assert result == value or (isinstance(value, float) and math.isnan(value) and math.isnan(result))


def test_what_is_torn_or_no_object_is_left_out() -> None:
    lines = [b'{"a": 1}', b"[1]", b'{"a"', b"", b"\xff\xfe", b"[" * 100_000, b'{"b": NaN}']
    assert [list(value) for value in objects(lines)] == [["a"], ["b"]]


def test_the_last_training_record_is_the_last_with_step_and_loss(tmp_path: Path) -> None:
    problems: list[str] = []
    path = metrics(
        tmp_path, '{"step": 1, "loss": 3}', '{"step": 2, "loss": 2}', '{"step": 2, "eval_loss": 1}', '{"step": 3, "lo'
    )
    assert last_metrics(path, problems) == {"step": 2, "loss": 2} and not problems


def test_a_record_far_from_the_end_is_found_within_the_tail(tmp_path: Path) -> None:
    problems: list[str] = []
    evaluation = json.dumps({"step": 2, "eval_loss": 1, "note": "x" * 900})
    assert last_metrics(metrics(tmp_path, '{"step": 2, "loss": 2}', *[evaluation] * 30), problems) == {
        "step": 2,
        "loss": 2,
    }
    path = metrics(tmp_path, '{"step": 2, "loss": 2}', *[evaluation] * (TAIL_BYTES // 900 + 1))
    assert last_metrics(path, problems) == {} and problems == ["metrics.jsonl: no complete record at its end"]


def test_an_empty_or_absent_file_has_no_record_and_is_no_problem(tmp_path: Path) -> None:
    problems: list[str] = []
    assert last_metrics(metrics(tmp_path), problems) == {} == last_metrics(str(tmp_path / "absent"), problems)
    assert not problems


@pytest.mark.parametrize(
    ("value", "real", "whole"),
    [(3, 3.0, 3), (2.9, 2.9, 2), (True, None, None), ("3", None, None), (None, None, None), (math.nan, None, None),
     (math.inf, None, None), (2.0**64, None, None), (-5, -5.0, -5), ([1], None, None)],
)  # fmt: skip
def test_numbers_are_finite_and_plausible(value: object, real: float | None, whole: int | None) -> None:
    assert (number(value), whole_number(value)) == (real, whole)


def test_origins_nested_too_deeply_are_not_what_dtk_wrote(tmp_path: Path) -> None:
    path = tmp_path / "origins.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not what dtk wrote"):
        read_origins(path)
    path.write_text(dumps(Origins()))
    assert read_origins(path) == Origins()


def test_a_reason_is_one_line_without_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised:
        (tmp_path / "absent").read_bytes()
    assert reason(raised.value) == "No such file or directory"
    assert reason(ValueError("a\n b")) == "a b" and reason(RecursionError()) == "RecursionError"
    assert as_mapping([]) == {} and as_mapping({"a": 1}) == {"a": 1}


def test_records_that_a_later_attempt_made_again() -> None:
    logged = [(0, 1), (0, 4), (0, 6), (2, 4), (1, 3), (2, 5)]
    starts = first_steps(logged)
    assert starts == {0: 1, 1: 3, 2: 4}
    assert [pair for pair in logged if not made_again(*pair, starts)] == [(0, 1), (2, 4), (1, 3), (2, 5)]
