"""Error files of torch elastic and dtk, whole and damaged."""
# ruff: noqa: E501  # texts as they are printed, one case a line

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.error import read, recognise

TRACE = """Traceback (most recent call last):
  File "train.py", line 14, in main
    step()
  File "train.py", line 7, in step
    raise ValueError("bad batch")
ValueError: bad batch
"""
ELASTIC = {
    "message": {"message": "ValueError: bad batch", "extraInfo": {"py_callstack": TRACE, "timestamp": "1795269870"}}
}
DTK = {
    "schema_version": 1, "rank": 3, "attempt": 0, "type": "ValueError", "message": "bad batch", "file": "train.py",
    "line": 7, "function": "step", "region": "backward", "time_s": 1795269870.5, "user_error": False, "traceback": TRACE,
}  # fmt: skip


def error(path: Path, value: Any, rank: int | None = 2) -> Any:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return read(path, path.name, rank, Limits())


def test_elastic(tmp_path: Path) -> None:
    assert recognise(json.dumps(ELASTIC).encode())
    result = error(tmp_path / "error.json", ELASTIC)
    assert (result.rank, result.type, result.message, result.time_s) == (2, "ValueError", "bad batch", 1795269870.0)
    assert [frame.line for frame in result.frames] == [7, 14]


def test_a_log_of_json_lines_is_no_error_file() -> None:
    """Whose key `message` comes first, as some loggers print it."""
    line = json.dumps({"message": "Traceback (most recent call last):", "level": "error"}).encode()
    assert not recognise(line + b"\n" + line) and recognise(line) and not recognise(b"[" + line)


def test_elastic_in_the_agents_copy_with_a_code(tmp_path: Path) -> None:
    result = error(tmp_path / "error.json", {"message": {**ELASTIC["message"], "errorCode": -6}})
    assert (result.exit_code, result.signal) == (-6, "SIGABRT")


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        ("ValueError: bad batch", "ValueError", "bad batch"),
        (TRACE, "ValueError", "bad batch"),
        ("just words", "", "just words"),
    ],
)
def test_plain_messages(tmp_path: Path, message: str, kind: str, text: str) -> None:
    result = error(tmp_path / "error.json", {"message": message})
    assert (result.type, result.message) == (kind, text)


def test_dtks_own(tmp_path: Path) -> None:
    assert recognise(json.dumps(DTK, indent=2).encode())
    result = error(tmp_path / "error.json", DTK, rank=None)
    assert (result.rank, result.type, result.region, result.time_s) == (3, "ValueError", "backward", 1795269870.5)
    assert (result.frames[0].file, result.frames[0].line, result.frames[0].function) == ("train.py", 7, "step")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"message": 3}',
        '{"message": {"message": null}}',
        '{"message":' * 50_000,
        "\x00\xff",
        '{"a": 1}',
    ],
)
def test_damage_is_a_value_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        error(tmp_path / "error.json", text)


def test_fields_of_other_types_do_no_harm(tmp_path: Path) -> None:
    by_key: dict[str, Any] = {key: [1, {"a": 2}] for key in DTK}
    result = error(tmp_path / "error.json", by_key, rank=None)
    assert (result.rank, result.type, result.frames) == (None, "", ())
    by_key = {"message": {"message": "x", "extraInfo": {"py_callstack": 5, "timestamp": "nan"}, "errorCode": 1e400}}
    assert error(tmp_path / "error.json", by_key).time_s is None


HONEST = json.dumps(DTK).encode()
DAMAGED = HONEST[:-40]
