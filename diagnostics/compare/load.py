"""Reads one run folder for a comparison: strict about what cannot be compared, silent about what is merely absent.

Judges nothing. Every file is bounded; a folder that is no run, damaged or of a newer dtk is one line.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.artifacts import SCHEMA_VERSION, RunPaths
from diagnostics.compare.model import RunRecord, Traffic, Window
from diagnostics.errors import DiagnosticsError
from diagnostics.evidence import run_folder
from diagnostics.evidence.limits import Limits, blocks, whole
from diagnostics.evidence.model import Problem
from diagnostics.invocation import command
from diagnostics.processes import still_runs

_NEEDED = ("status.json", "config.yaml", "manifest.json", "parity.json", "summary.json")
_MASK = (1 << 64) - 1


class _Line(msgspec.Struct):
    """What is read of a line of metrics.jsonl; evaluations have no step time."""

    step: int
    time_s: float = 0.0
    attempt: int = 0
    loss: float | None = None
    step_time_s: float | None = None
    tokens: int | None = None
    mfu: float | None = None
    peak_memory_bytes: float | None = None
    communicated_bytes_per_step: float | None = None
    samples_hash: str | None = None


def load(folder: Path, limits: Limits) -> RunRecord:
    """Read a run folder.

    Raises:
        DiagnosticsError: it is no run folder, damaged, or was written by a newer dtk.
    """
    if not folder.is_dir() or not run_folder.is_run(folder):
        raise DiagnosticsError(f"{folder} is not a run folder", f"{command('ls')} lists the runs")
    problems: list[Problem] = []
    read = run_folder.read(folder, limits, problems)
    paths = RunPaths(folder)
    parity = _parity(paths.parity, limits, problems)
    _refuse(folder, problems, (read.manifest, read.summary, parity))
    status = read.status
    if status is None or not read.config or not read.manifest:
        missing = "status.json" if status is None else "config.yaml" if not read.config else "manifest.json"
        raise DiagnosticsError(f"{folder} cannot be compared: {missing} is missing", "compare other runs")
    windows, problem = _windows(paths.metrics, limits)
    if problem:
        raise DiagnosticsError(f"{folder} cannot be compared: metrics.jsonl: {problem}", "compare other runs")
    lost = status.state == "running" and still_runs(read.manifest) is False
    topology = _mapping(read.manifest.get("topology"))
    world_size = topology.get("world_size")
    return RunRecord(
        path=folder,
        state="lost" if lost else str(status.state),
        reason=str(status.reason or (status.failure.reason if status.failure else "")),
        started=str(read.manifest.get("created", "")),
        config=read.config,
        manifest=read.manifest,
        parity=parity,
        figures=_mapping(read.summary.get("figures")),
        traffic=_traffic(read.plan),
        windows=windows,
        world_size=world_size if isinstance(world_size, int) and world_size > 0 else 1,
    )


def _refuse(folder: Path, problems: list[Problem], records: tuple[Mapping[str, Any], ...]) -> None:
    for record in records:
        version = record.get("schema_version", 0)
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise DiagnosticsError(
                f"{folder} was written by a newer dtk (schema {version})", "upgrade dtk to compare it"
            )
    for problem in problems:
        if problem.file in _NEEDED and "newer dtk" in problem.what:
            raise DiagnosticsError(f"{folder} was written by a newer dtk", "upgrade dtk to compare it")
        if problem.file in _NEEDED and problem.what.startswith("damaged"):
            raise DiagnosticsError(f"{folder} cannot be compared: {problem.file}: {problem.what}", "compare other runs")


def _parity(path: Path, limits: Limits, problems: list[Problem]) -> Mapping[str, Any]:
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(whole(path, limits))
        if not isinstance(value, dict):
            raise ValueError("not a mapping")
        return value
    except (OSError, ValueError, RecursionError) as problem:
        problems.append(Problem("run", path.name, f"damaged: {str(problem)[:200]}"))
        return {}


def _windows(path: Path, limits: Limits) -> tuple[tuple[Window, ...], str]:
    """Of every step the latest attempt's record; and why the file cannot be read."""
    lines: list[_Line] = []
    rest = b""
    try:
        if path.is_symlink() or not path.is_file():
            return (), ""
        for block in blocks(path, limits):
            *whole_lines, rest = (rest + block).split(b"\n")
            if len(rest) > limits.event_bytes:
                return (), "a line without end"
            lines += [line for line in map(_line, whole_lines) if line is not None]
    except (OSError, ValueError) as problem:
        return (), str(problem)[:200]
    starts: dict[int, int] = {}
    for line in lines:
        starts[line.attempt] = min(line.step, starts.get(line.attempt, line.step))
    windows: list[Window] = []
    last: dict[int, int] = {}
    for line in lines:
        if any(later > line.attempt and start <= line.step for later, start in starts.items()):
            continue  # Made again by a later attempt.
        # The first step of an attempt is always logged, so its window is that step alone.
        first = last.get(line.attempt, line.step - 1)
        last[line.attempt] = line.step
        if line.step > first:
            windows.append(_window(line, first, starts[line.attempt] - 1))
    return tuple(windows), ""


def _line(text: bytes) -> _Line | None:
    """A training record; None for an evaluation, and for what a full disk tore."""
    line: _Line | None
    try:
        line = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        line = _with_nan(text)
    return line if line is not None and line.step_time_s is not None and 0 < line.step < 1 << 62 else None


def _with_nan(text: bytes) -> _Line | None:
    """Python writes NaN and Infinity, which strict JSON lacks."""
    import json

    try:
        return msgspec.convert(json.loads(text, parse_constant=lambda _: None), _Line)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


_DECODER = msgspec.json.Decoder(_Line)


def _window(line: _Line, first: int, began: int) -> Window:
    return Window(
        first=first,
        last=line.step,
        began_step=began,
        time_s=line.time_s,
        loss=_finite(line.loss),
        step_time_s=_positive(line.step_time_s),
        tokens=line.tokens,
        mfu=_finite(line.mfu),
        memory_bytes=_finite(line.peak_memory_bytes),
        sent_bytes=_finite(line.communicated_bytes_per_step),
        samples=_hash(line.samples_hash),
    )


def _traffic(plan: Mapping[str, Any]) -> tuple[Traffic, ...]:
    found = []
    for one in plan.get("traffic") or () if isinstance(plan.get("traffic"), list) else ():
        try:
            found.append(msgspec.convert(one, Traffic, strict=False))
        except msgspec.ValidationError:
            continue
    return tuple(found)


def _hash(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 16) & _MASK
    except ValueError:
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _positive(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
