"""Reads the small records of a run folder with bounded size, so that ten thousand runs can be listed, and compares a
plan with what was measured. Never fails.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.contract.files import open_regular, read_record, table_beside
from diagnostics.contract.origins import Origins, loads

MOST_BYTES = 4 << 20  # Maximum size of dtk's records.
TAIL_BYTES = 64 * 1024  # Longer than any one record; a short tail is tried first.
_SHORT_TAIL_BYTES = 4 * 1024  # Contains the last records of almost every run.
_LONGEST = 200  # Chosen: characters of a reason, which may quote the file that it is about.
_STEP_KEYS = ("loss", "step")
_LARGEST = 2.0**63  # A whole number beyond it is no step of dtk's.
FIGURES: list[tuple[str, str]] = [*table_beside(__file__).items()]
"""Title of each figure, and its name among the metrics."""


def content(path: str) -> bytes:
    """Return the content of a file; raise OSError, or ValueError if it exceeds dtk's record size."""
    return read_record(path, MOST_BYTES, follow=False)


def read_origins(path: Path) -> Origins:
    """Read origins.json; raise OSError if it cannot be read, and ValueError as `origins.loads`."""
    try:
        return loads(content(str(path)))
    except RecursionError as error:
        raise ValueError("origins.json is not what dtk wrote") from error


def mapping(path: str, problems: list[str]) -> dict[str, Any]:
    """Return a JSON object; empty if it cannot be read."""
    try:
        value = decoded(content(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{_name(path)}: {reason(error)}")
        return {}
    return as_mapping(value)


def decoded(text: bytes) -> Any:
    """Decode JSON with Python's NaN and infinities, which standard JSON does not have; raise ValueError if invalid."""
    import msgspec  # Imported here, as it would slow down the start of every command.

    try:
        return msgspec.json.decode(text)  # Five times as fast, but strict.
    except msgspec.DecodeError:
        return json.loads(text)


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in lines; invalid or too deeply nested lines and other values are skipped."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            value = decoded(line)
            if isinstance(value, dict):
                yield value


def first_steps(logged: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the first step that each attempt logged, given (attempt, step) of each record of metrics.jsonl."""
    starts: dict[int, int] = {}
    for attempt, step in logged:
        starts[attempt] = min(step, starts.get(attempt, step))
    return starts


def logged_steps(lines: Iterable[bytes]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (attempt, step, record) of each record of metrics.jsonl with a step."""
    for record in objects(lines):
        if (step := whole_number(record.get("step"))) is not None:
            yield whole_number(record.get("attempt")) or 0, step, record


def made_again(attempt: int, step: int, starts: dict[int, int]) -> bool:
    """Return whether a later attempt restarted at or before this step, so that its records replace this one."""
    return any(later > attempt and first <= step for later, first in starts.items())


def latest_records(lines: Callable[[], Iterable[bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (step, record) of metrics.jsonl; for a step in several attempts only the latest record.

    `lines` returns the lines of the file from its beginning; it is called twice.
    """
    starts = first_steps((attempt, step) for attempt, step, _ in logged_steps(lines()))
    for attempt, step, record in logged_steps(lines()):
        if not made_again(attempt, step, starts):
            yield step, record


def last_lines(path: Path, most_bytes: int) -> list[bytes]:
    """Return the complete lines in the last bytes of a file; empty if it cannot be read."""
    try:
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            lines = os.pread(file.fileno(), most_bytes, max(0, size - most_bytes)).split(b"\n")
    except OSError:
        return []
    return lines[1:] if size > most_bytes else lines


def last_metrics(path: str, problems: list[str]) -> dict[str, Any]:
    """Return the last complete training record. An incomplete last line and evaluation records are skipped."""
    try:
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            for length in (_SHORT_TAIL_BYTES, TAIL_BYTES):
                tail = os.pread(file.fileno(), length, max(0, size - length))
                records = objects(reversed(tail.split(b"\n")))
                last = next((record for record in records if all(key in record for key in _STEP_KEYS)), {})
                if last or length >= size:
                    break
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{_name(path)}: {reason(error)}")
        return {}
    if size and not last:
        problems.append(f"{_name(path)}: no complete record at its end")
    return last


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """Return the value as an int, or None if it is not a number, not finite or implausible."""
    return None if number(value) is None else int(value)


def number(value: Any) -> float | None:
    """Return the value as a float, or None if it is not a number, not finite or implausible."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def reason(error: object) -> str:
    """Return why a file could not be read, in one line without its path."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:_LONGEST] or type(error).__name__


def planned_and_measured(
    plan: Mapping[str, Any], figures: Mapping[str, Any]
) -> list[tuple[str, str, float, float | None]]:
    """Return title, metric name, planned and measured value (None if not recorded) of each planned figure."""
    traffic = plan.get("traffic")
    sent = [number(as_mapping(item).get("size_bytes")) for item in traffic] if isinstance(traffic, list) else [None]
    planned = {
        "peak_memory_bytes": number(plan.get("peak_bytes")),
        "step_time_s": number(as_mapping(plan.get("time")).get("step_s")),
        "communicated_bytes_per_step": None if None in sent else sum(value for value in sent if value is not None),
    }
    planned_figures = [(title, name, value) for title, name in FIGURES if (value := planned[name]) is not None]
    return [(title, name, value, number(figures.get(name))) for title, name, value in planned_figures]
