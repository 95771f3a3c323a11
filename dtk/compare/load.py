"""Reads one run folder in bounded memory: rejects what cannot be compared, and tolerates missing files."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.formatting import counted
from diagnostics.contract.invocation import command
from diagnostics.evidence.job import run_folder
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.metrics import WARMUP_STEPS
from diagnostics.evidence.model import Problem
from diagnostics.runs.processes import still_runs
from diagnostics.runs.records import as_mapping
from dtk.compare import metrics
from dtk.compare.model import NOT_COMPARED, RunRecord, Traffic

_NEEDED = ("status.json", "config.yaml", "manifest.json", "parity.json", "summary.json")


def load(folder: Path, limits: Limits, warmup_steps: int = WARMUP_STEPS) -> RunRecord:
    """Read a run folder; DiagnosticsError if it is not a run folder, is damaged, or was written by a newer dtk."""
    if not folder.is_dir() or not run_folder.is_run(folder):
        raise DiagnosticsError(f"{folder} is not a run folder", f"{command('ls')} lists the runs")
    for name in _NEEDED:  # Reading a named pipe would block.
        if (folder / name).exists() and not (folder / name).is_file():
            raise _damaged(folder, f"{name}: not a regular file")
    problems: list[Problem] = []
    read = run_folder.read(folder, limits, problems)
    paths = RunPaths(folder)
    parity: Mapping[str, Any] = {}
    if paths.parity.is_file() and not paths.parity.is_symlink():
        try:
            parity = small_json(paths.parity, limits)
        except (OSError, ValueError) as problem:
            problems.append(run_folder.damaged(paths.parity.name, problem))
    _refuse(folder, problems, (read.manifest, read.summary, parity))
    status = read.status
    if status is None or not read.config or not read.manifest:
        missing = "status.json" if status is None else "config.yaml" if not read.config else "manifest.json"
        raise _damaged(folder, f"{missing} is missing")
    lost = status.state == "running" and still_runs(read.manifest) is False
    state = "lost" if lost else str(status.state)
    logged = metrics.read(paths.metrics, limits, grows=state == "running")
    if logged.problem and state not in NOT_COMPARED:
        raise _damaged(folder, f"metrics.jsonl: {logged.problem}")
    level = as_mapping(read.config.get("record")).get("level")
    if logged.absent and state == "finished" and level not in ("off", False):
        raise _damaged(folder, "metrics.jsonl is missing or empty")
    traffic, listed = [], read.plan.get("traffic")
    for record in listed if isinstance(listed, list) else ():
        with suppress(ValueError):
            traffic.append(msgspec.convert(record, Traffic, strict=False))
    world_size = as_mapping(read.manifest.get("topology")).get("world_size")
    return RunRecord(
        path=folder,
        state=state,
        reason=str(status.reason or (status.failure.reason if status.failure else "")),
        started=str(read.manifest.get("created", "")),
        config=read.config,
        manifest=read.manifest,
        parity=parity,
        figures=as_mapping(read.summary.get("figures")),
        traffic=tuple(traffic),
        planned=isinstance(listed, list),
        windows=logged.windows,
        warmup_steps=warmup_steps,
        world_size=world_size if isinstance(world_size, int) and world_size > 0 else 1,
        damage=tuple(_damage(paths.plan, problems, logged)),
    )


def _damaged(folder: Path, what: str) -> DiagnosticsError:
    return DiagnosticsError(f"{folder} cannot be compared: {what}", "compare other runs")


def _damage(plan: Path, problems: list[Problem], logged: metrics.Metrics) -> Iterator[str]:
    if logged.problem:
        yield f"metrics.jsonl: {logged.problem}"
    if logged.broken:
        yield f"metrics.jsonl: {counted(logged.broken, 'line')} cannot be read"
    yield from (f"{problem.file}: {problem.what}" for problem in problems if problem.file == plan.name)
    if plan.is_symlink() or (plan.exists() and not plan.is_file()):
        yield f"{plan.name}: not a regular file"


def _refuse(folder: Path, problems: list[Problem], records: tuple[Mapping[str, Any], ...]) -> None:
    for record in records:
        version = record.get("schema_version", 0)
        if isinstance(version, int) and version > SCHEMA_VERSION:
            what = f"{folder} was written by a newer dtk (schema {version})"
            raise DiagnosticsError(what, "upgrade dtk to compare it")
    for problem in problems:
        if problem.file in _NEEDED and problem.reason == "newer":
            raise DiagnosticsError(f"{folder} was written by a newer dtk", "upgrade dtk to compare it")
        if problem.file in _NEEDED and problem.reason == "damaged":
            raise _damaged(folder, f"{problem.file}: {problem.what}")
