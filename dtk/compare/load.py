"""Reads one run folder in bounded memory: rejects what cannot be compared, and tolerates missing files. Of
metrics.jsonl it keeps the latest attempt's record of each step, and how much of the file could not be read;
of telemetry/*.jsonl the disturbances in the measured steps (throttling, other processes), and the energy.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.node_health import SLOWED
from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.formatting import command, counted
from diagnostics.evidence.job import run_folder
from diagnostics.evidence.limits import Limits, lines_of, small_json
from diagnostics.evidence.metrics import WARMUP_STEPS
from diagnostics.evidence.model import Problem
from diagnostics.runs.find import still_runs
from diagnostics.runs.records import as_mapping, first_steps, made_again, number, objects, reason
from dtk.compare.figures import step_time_s, timespan_s
from dtk.compare.model import MASK, NOT_COMPARED, Disturbance, RunRecord, Traffic, Window

_NEEDED = ("status.json", "config.yaml", "manifest.json", "parity.json", "summary.json")
_DECODER = msgspec.json.Decoder(Window)
CAPPED = "software_power_cap"  # Running at the power limit is usual under full load, but explains lower clocks.
SLOWED_SHARE, CAPPED_SHARE = 0.05, 0.5  # Fraction of the samples; chosen: a smaller one changes no median.
OTHERS_PERCENT = 15.0  # Mean CPU use of other processes, in percent, from which they count as a disturbance.
BUSY_PERCENT = 85.0  # CPU utilization of the machine in percent above which processes wait for each other.
STOLEN_PERCENT = 5.0  # CPU that the hypervisor gave to other machines.


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
    logged = read_metrics(paths.metrics, limits, grows=state == "running")
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


def _damage(plan: Path, problems: list[Problem], logged: Metrics) -> Iterator[str]:
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


def read_metrics(path: Path, limits: Limits, *, grows: bool) -> Metrics:
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


def surrounded(run: RunRecord, limits: Limits) -> RunRecord:
    """Return the run with what the samples of all nodes show about its measured steps, of which it has some."""
    begin_s, end_s = timespan_s(run)
    clocks: list[float] = []
    watts: list[float] = []
    disturbances: list[Disturbance] = []
    for path in sorted((run.path / "telemetry").glob("node_*.jsonl"))[: limits.files]:
        samples: list[dict[str, Any]] = []
        if path.is_file() and not path.is_symlink():
            with suppress(OSError, ValueError):  # Keep what was read; the diagnosis reports damaged files.
                for value in objects(lines_of(path, limits)):
                    time_s = number(value.get("time_s")) if value.get("kind") == "sample" else None
                    if time_s is not None and begin_s <= time_s <= end_s:
                        samples.append(value)
        node = "" if path.name == "node_00000.jsonl" else f" of {path.stem.replace('_0000', ' ')}"
        disturbances += _host(samples, node)
        by_device: dict[str, list[dict[str, Any]]] = {}
        for sample in samples:
            of_gpus = sample.get("gpu")
            for gpu in of_gpus if isinstance(of_gpus, list) else ():
                if isinstance(gpu, dict):
                    by_device.setdefault(str(gpu.get("uuid")), []).append({**gpu, "time_s": sample["time_s"]})
        for device in by_device.values():
            disturbances += _throttled(f"GPU {device[0].get('index')}{node}", device)
            clocks += _numbers(device, "sm_clock_mhz")
            watts += [power for power in (_power(device),) if power is not None]
    return replace(
        run,
        energy_j=sum(watts) * step_time_s(run) if watts else None,
        clocks_mhz=median(clocks) if clocks else None,
        disturbances=tuple(disturbances),
    )


def _throttled(name: str, device: list[dict[str, Any]]) -> list[Disturbance]:
    samples = [reasons for sample in device if isinstance(reasons := sample.get("throttle_reasons"), list)]
    if not samples:
        return []
    counts = Counter(str(reason) for reasons in samples for reason in reasons)
    shares = {reason: counts[reason] / len(samples) for reason in (*sorted(SLOWED), CAPPED)}
    slowed = [r for r in sorted(SLOWED) if shares[r] >= SLOWED_SHARE]
    if slowed:
        reasons = ", ".join(f"{reason} in {shares[reason]:.0%} of the samples" for reason in slowed)
        return [Disturbance("a device was throttled", f"{name}: {reasons}")]
    if shares[CAPPED] >= CAPPED_SHARE:
        share = f"{shares[CAPPED]:.0%}"
        return [Disturbance("a device ran at its power limit", f"{name} in {share} of the samples")]
    return []


def _host(samples: list[dict[str, Any]], node: str) -> list[Disturbance]:
    hosts = [host for sample in samples if isinstance(host := sample.get("host"), dict)]
    disturbances = []
    others, busy = _numbers(hosts, "others_cpu_percent"), _numbers(hosts, "cpu_percent")
    if others and fmean(others) >= OTHERS_PERCENT and fmean(busy) >= BUSY_PERCENT:
        disturbances.append(Disturbance("other processes used the CPU", f"{fmean(others):.0f}% of it{node}"))
    stolen = _numbers(hosts, "stolen_cpu_percent")
    if stolen and fmean(stolen) >= STOLEN_PERCENT:
        disturbances.append(Disturbance("the hypervisor gave the CPU to others", f"{fmean(stolen):.0f}% of it{node}"))
    for key, what in (("network_errors", "network errors"), ("network_drops", "dropped packets")):
        counts = _numbers(hosts, key)
        if len(counts) > 1 and counts[-1] > counts[0]:
            disturbances.append(Disturbance(f"the network had {what}", f"{counts[-1] - counts[0]:,.0f}{node}"))
    return disturbances


def _power(device: list[dict[str, Any]]) -> float | None:
    """Return mean watts: from the energy counter if there is one, else from the samples of the power."""
    counted = [(float(s["time_s"]), joules) for s in device if (joules := number(s.get("energy_joules"))) is not None]
    if len(counted) > 1:
        (begin_s, before), (end_s, after) = counted[0], counted[-1]
        if end_s > begin_s and after >= before:
            return (after - before) / (end_s - begin_s)
    watts = _numbers(device, "power_watts")
    return fmean(watts) if watts else None


def _numbers(records: list[dict[str, Any]], key: str) -> list[float]:
    return [value for record in records if (value := number(record.get(key))) is not None]
