"""Other public analysers of traces beside dtk: what they open, how exact their figures are, what they cost.

`corpus.py --analysers PYTHON ...` calls it. Each PYTHON is an interpreter with at least one of the analysers installed;
dtk depends on none of them. Figures are compared with arithmetic on the events that shares no code with dtk. A figure
is compared only if the analyser gives it, and in the window that the analyser uses: all device events of the file, or
kernels within the marked steps. An analyser names a cause if one of its remarks matches the truth in
`trace_truth.json`, whatever else it says.
"""

import gzip
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from benchmarks.log_corpus import true_causes
from benchmarks.trace_speed import timed

Spans = list[tuple[float, float]]
Figures = dict[str, float]


class Analyser(Struct):
    """One analyser: how to call it and what it gives."""

    package: str
    evidence: str
    idle: str = "idle"
    """Figure of the arithmetic with which its idle time is compared."""


ANALYSERS = {
    "dtk": Analyser("dtk", "Kineto"),
    "hta": Analyser("HolisticTraceAnalysis", "Kineto"),
    "tb": Analyser("torch-tb-profiler", "Kineto", "idle_in_steps"),
    "gpu_idle": Analyser("gpu-idle", "Kineto", "idle_in_steps"),
    "dtk, Nsight": Analyser("dtk", "Nsight"),
    "nsys_ai": Analyser("nsys-ai", "Nsight"),
}
PATTERNS = {"Kineto": "*.json.gz", "Nsight": "*.sqlite"}
KERNELS = ("kernel", "mtia_ccp_events")
"""Categories of computation on a device: of GPUs, and of the accelerator of one trace."""
FIGURES = ("overlap", "exposed", "idle")
TOLERANCE = 1.0
"""Percentage points: analysers round times, and end a window at slightly different events."""
SAID = {
    "overlap.data_bound": "data_bound|input data loading|dataloader",
    "overlap.host_bound": "host_bound|smallbatch",
    "overlap.skew": "skew",
    "overlap.same_stream": "same_stream|NCCL Serialization",
    "overlap.copies": "overlap.copies|H2D|h2d_copy",
}
"""Cause -> the words in which the analysers name it."""
VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


class Row(Struct):
    """What one analyser did with all traces of its format."""

    traces: int = 0
    opened: int = 0
    equal: dict[str, list[bool]] = field(default_factory=lambda: {name: [] for name in FIGURES})
    causes: list[bool] = field(default_factory=list)
    further: int = 0
    cpu_s: float = 0.0
    peak_mb: float = 0.0


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """Return the spans sorted and merged."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union."""
    return sum(end - start for start, end in union(spans))


def arithmetic(kernels: dict[str, Spans], copies: Spans, steps: Spans) -> Figures:
    """Return the figures of one rank or device from inclusion and exclusion; `kernels` by use."""
    communication, compute = total(kernels["communication"]), total(kernels["compute"])
    device = [*kernels["communication"], *kernels["compute"], *copies]
    if not device:
        return {}
    wall = max(end for _, end in device) - min(start for start, _ in device)
    busy, others = total(device), total([*kernels["compute"], *copies])
    result = {"idle": 100 * (1 - busy / wall)}
    if communication:
        both = communication + compute - total([*kernels["communication"], *kernels["compute"]])
        result |= {"overlap": 100 * both / communication, "exposed": 100 * (busy - others) / wall}
    if steps:
        first, last = min(start for start, _ in steps), max(end for _, end in steps)
        spans = [span for part in kernels.values() for span in part if span[1] > first and span[0] < last]
        clipped = [(max(start, first), min(end, last)) for start, end in spans]
        result["idle_in_steps"] = 100 * (1 - total(clipped) / (last - first))
    return result


def use(name: str) -> str:
    """Return what a kernel is for."""
    return "communication" if re.search("nccl|rccl", name, re.IGNORECASE) else "compute"


def kineto(path: Path) -> list[Figures]:
    """Return the figures of one rank."""
    kernels: dict[str, Spans] = {"communication": [], "compute": []}
    copies, steps = [], []
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        kind, start = str(event.get("cat", "")).lower(), float(event.get("ts", 0))
        span = (start, start + float(event.get("dur", 0)))
        if kind in KERNELS:
            kernels[use(event["name"])].append(span)
        elif kind.removeprefix("gpu_") in ("memcpy", "memset"):
            copies.append(span)
        elif event.get("ph") == "X" and event["name"].startswith("ProfilerStep"):
            steps.append(span)
    return [arithmetic(kernels, copies, steps)]


def nsight(path: Path) -> list[Figures]:
    """Return the figures of each device."""
    kernels: dict[int, dict[str, Spans]] = {}
    copies: dict[int, Spans] = {}
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    names = dict(database.execute("SELECT id, value FROM StringIds"))
    rows = database.execute("SELECT deviceId, start, end, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL")
    for device, start, end, name in rows:
        kernels.setdefault(device, {"communication": [], "compute": []})[use(names[name])].append((start, end))
    for table in tables & {"CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"}:
        for device, start, end in database.execute(f"SELECT deviceId, start, end FROM {table}"):
            copies.setdefault(device, []).append((start, end))
    database.close()
    return [arithmetic(kernels[device], copies.get(device, []), []) for device in sorted(kernels)]


def installed(package: str, pythons: list[str]) -> tuple[str, str] | None:
    """Return the first interpreter that has a package, and the version of the package."""
    for python in pythons:
        done = subprocess.run([python, "-c", VERSION, package], capture_output=True, text=True, check=False)
        if not done.returncode:
            return python, done.stdout.strip()
    return None


def run(name: str, python: str, folder: Path, files: list[Path]) -> tuple[dict[str, Any], float, float]:
    """Return the answer of an analyser, CPU seconds and peak MB, on copies: some write files beside the traces."""
    with tempfile.TemporaryDirectory() as place:
        for path in files:
            shutil.copyfile(path, Path(place) / path.name)
        script = Path(__file__).with_name("analyser_figures.py")
        output, (cpu_s, _, peak_mb) = timed(python, [str(script), name.partition(",")[0], place])
    result = json.loads(output.splitlines()[-1])
    if "error" in result:
        print(f"{name}, {folder.name}: not opened: {result['error']}", file=sys.stderr, flush=True)
    return result, cpu_s, peak_mb


def compare(row: Row, name: str, folder: Path, answer: dict[str, Any], exact: list[Figures]) -> None:
    """Count the figures that are within the tolerance of the arithmetic; tell on stderr of those that are not."""
    for number, (given, right) in enumerate(zip_longest(answer["ranks"], exact, fillvalue={})):
        for figure in FIGURES:
            key = ANALYSERS[name].idle if figure == "idle" else figure
            if figure not in given or given[figure] != given[figure] or key not in right:
                continue
            row.equal[figure].append(abs(given[figure] - right[key]) <= TOLERANCE)
            if not row.equal[figure][-1]:
                text = f"{figure} {given[figure]:.1f}% where the events give {right[key]:.1f}%"
                print(f"{name}, {folder.name}, {number}: {text}", file=sys.stderr, flush=True)


def grade(row: Row, name: str, folder: Path, truth: dict[str, Any], answer: dict[str, Any]) -> None:
    """Count named causes and further remarks; numbers in a remark, as that of a rank, do not make it another one."""
    remarks = {re.sub(r"\b\d[\d.]*", "", remark) for remark in answer["remarks"]}
    words = "|".join(SAID[cause] for cause in true_causes(truth) if cause in SAID)
    matches = {remark for remark in remarks if words and re.search(words, remark)}
    if truth.get("causes") not in (None, ["healthy"]):
        row.causes.append(bool(matches))
    if not truth.get("open"):
        row.further += len(remarks - matches)
        for remark in sorted(remarks - matches):
            print(f"{name}, {folder.name}: also says: {remark[:90]}", file=sys.stderr, flush=True)


def table(traces: Path, truths: dict[str, Any], pythons: list[str]) -> None:
    """Print one row for each analyser that is installed."""
    shares = " | ".join(f"{name} within {TOLERANCE:g} point" for name in FIGURES)
    print(f"| analyser | traces | opened | {shares} | causes named | further remarks | CPU s | peak MB |")
    print("|---" * (len(FIGURES) + 7) + "|")
    for name, analyser in ANALYSERS.items():
        place = (sys.executable, "") if analyser.package == "dtk" else installed(analyser.package, pythons)
        if place is None:
            print(f"{analyser.package}: skipped: not installed in {pythons}", file=sys.stderr, flush=True)
            continue
        row, remarks = Row(), False
        for folder in (traces / key for key in truths):
            files = sorted(folder.glob(PATTERNS[analyser.evidence]))
            if not files:
                continue
            answer, cpu_s, peak_mb = run(name, place[0], folder, files)
            row.traces += 1
            row.cpu_s, row.peak_mb = row.cpu_s + cpu_s, max(row.peak_mb, peak_mb)
            if "error" in answer:
                continue
            row.opened += 1
            read = kineto if analyser.evidence == "Kineto" else nsight
            compare(row, name, folder, answer, [rank for path in files for rank in read(path)])
            if "remarks" in answer:
                remarks = True
                grade(row, name, folder, truths[folder.name], answer)
        counts = [f"{sum(equal)} of {len(equal)}" if equal else "" for equal in row.equal.values()]
        named = f"{sum(row.causes)} of {len(row.causes)}" if remarks else ""
        title = f"{analyser.package} {place[1]}".strip() + f", {analyser.evidence}"
        cells = [title, row.traces, row.opened, *counts, named, row.further if remarks else ""]
        print(f"| {' | '.join(map(str, cells))} | {row.cpu_s:.1f} | {row.peak_mb:.0f} |", flush=True)
