"""Reads metrics.jsonl: the latest attempt's record of each step, and how much of the file could not be read."""

import json
import math
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnostics.evidence.limits import Limits, lines_of
from diagnostics.runs.records import first_steps, made_again, reason
from dtk.compare.model import Window

MASK = (1 << 64) - 1  # Hashes are sums modulo 2^64, see `dtk.data.sampler.samples_sum`.
_DECODER = msgspec.json.Decoder(Window)


class Metrics(Struct, frozen=True):
    """Contents of metrics.jsonl."""

    windows: tuple[Window, ...] = ()
    """Windows in step order."""
    broken: int = 0
    """Number of unreadable lines."""
    problem: str = ""
    """Why the whole file cannot be used; empty if it can, or if it is absent."""
    absent: bool = False
    """Whether the file is missing or empty."""


def read(path: Path, limits: Limits, *, grows: bool) -> Metrics:
    """Read metrics.jsonl; of a run that still writes it (`grows`), half a line at the end is no damage."""
    try:
        lines = [_line(text) for text in filter(bytes.strip, lines_of(path, limits))]
    except FileNotFoundError:
        return Metrics(absent=True)
    except (OSError, ValueError) as problem:
        return Metrics(problem=reason(problem))
    if grows and lines and lines[-1] is None:
        lines.pop()
    broken = lines.count(None)
    if lines and broken == len(lines):
        return Metrics(problem="no line of it can be read")
    return Metrics(_windows(lines), broken, absent=not lines)


def _windows(lines: list[Window | None]) -> tuple[Window, ...]:
    """Return the windows of the records of training; None is a line that cannot be read."""
    trained = [line for line in lines if line is None or (line.step_time_s is not None and line.last > 0)]
    starts = first_steps((line.attempt, line.last) for line in trained if line is not None)
    windows: list[Window] = []
    last: dict[int, int] = {}
    torn = False
    for line in trained:
        follows_torn, torn = torn, line is None
        if line is None or made_again(line.attempt, line.last, starts):
            continue
        # The first step of an attempt is always logged, so its window is that step alone.
        first = last.get(line.attempt, line.last - 1)
        last[line.attempt] = line.last
        samples = None
        if not follows_torn:  # If a previous record is lost, the steps of its samples are unknown.
            with suppress(ValueError, TypeError):
                samples = int(line.samples_hash, 16) & MASK  # type: ignore[arg-type]
        if line.last > first:
            began, time_s = starts[line.attempt] - 1, line.step_time_s if (line.step_time_s or 0.0) > 0 else None
            placed = {"first": first, "began_step": began, "step_time_s": time_s, "samples": samples}
            windows.append(msgspec.structs.replace(line, **placed))
    return tuple(windows)


def _line(text: bytes) -> Window | None:
    """Parse one record of training or evaluation; return None for a damaged line, as a full disk leaves it."""
    line: Window
    try:
        line = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:  # Python writes NaN and Infinity, which strict JSON lacks.
            values = json.loads(
                text,
                parse_constant=lambda _: None,
                parse_float=lambda number: value if math.isfinite(value := float(number)) else None,
            )
            line = msgspec.convert(values, Window)
        except (ValueError, RecursionError, msgspec.ValidationError):
            return None
    return line if 0 <= line.last < 1 << 62 else None
