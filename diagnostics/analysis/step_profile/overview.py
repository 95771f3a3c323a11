"""All ranks together: profiles, the split into waiting and transfer, and what the run declared.

Reads one trace at a time, several at once in processes when they are large. The causes work on this alone.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from statistics import median
from typing import Any

from diagnostics.analysis.step_profile.profile import Fact, RankProfile, profile
from diagnostics.analysis.step_profile.skew import Skew, find_skew
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.readers.nsys import NsysFile
from diagnostics.evidence.trace.model import TraceFile

SHARE = 0.02
"""Of the step: below it nothing is confirmed."""
_LARGE_BYTES = 512 << 20
"""Of all files, decompressed (some seconds of reading): from there on processes are worth their start."""
_GZIP_RATIO = 20
MS = 1e6
"""ns"""


@dataclass(slots=True)
class Overview:
    """What the causes are decided from."""

    profiles: list[RankProfile]
    """By rank."""
    skew: Skew
    world_size: int | None
    run: Any = None
    """`RunEvidence` of a dtk run, else None."""
    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Traced ranks, ascending."""
        return tuple(one.rank for one in self.profiles)

    @property
    def on_device(self) -> bool:
        """Whether the work ran on accelerators."""
        return any(one.on_device for one in self.profiles)

    @property
    def step_ms(self) -> float:
        """Median length of a step over steps and ranks."""
        return median([(s.end - s.start) / MS for one in self.profiles for s in one.steps] or [0.0])

    @property
    def unit(self) -> str:
        """What a cost refers to, in words."""
        return "step" if all(one.marked for one in self.profiles) else "window"

    def per_step_ms(self, amount: Callable[[RankProfile], float]) -> dict[int, float]:
        """An amount of ns per rank, as ms per step of that rank."""
        return {one.rank: amount(one) / MS / max(1, len(one.steps)) for one in self.profiles}

    def typical_ms(self, amount: Callable[[RankProfile], float]) -> float:
        """The median over ranks of that."""
        return median(self.per_step_ms(amount).values())

    def calls(self, one: RankProfile) -> Iterator[tuple[Fact, int, int]]:
        """(call, transfer ns, exposed transfer ns) of one rank; what is left of exposed is waiting for late ranks."""
        for call, floor in zip(one.calls, self.skew.floors.get(one.rank, ())):
            transfer = call.duration if floor < 0 else floor
            yield call, transfer, min(call.exposed, transfer)

    def declared(self, key: str) -> Any:
        """A value of the run's configuration; None without a dtk run."""
        return None if self.run is None else self.run.get(key)

    @property
    def crowded(self) -> str:
        """Ranks that share the cores of a CPU, in words; empty where each has its own, or nothing tells."""
        manifest = {} if self.run is None or self.on_device else self.run.manifest
        parts = [manifest.get(name) for name in ("topology", "hardware")]
        nproc, cores = (
            part.get(key) if isinstance(part, dict) else None for part, key in zip(parts, ("nproc", "cores"))
        )
        if isinstance(nproc, int) and isinstance(cores, int) and nproc > cores:
            return f"{nproc} ranks share {cores} cores"
        return ""

    @property
    def split(self) -> bool:
        """Whether transfer is known apart from waiting for late ranks."""
        return self.world_size == 1 or (self.skew.complete and self.skew.matched > 0)

    def worth(self, cost_ms: float) -> bool:
        """Whether a cost is worth a word."""
        return cost_ms >= SHARE * self.step_ms and cost_ms > 0


def overview(evidence: Evidence) -> Overview:
    """Read and profile all traces of the evidence; what cannot be read becomes a problem."""
    problems: list[Problem] = []
    profiles = _unique(_profiles(_files(evidence, problems), problems), problems)
    evidence.inside["trace" if evidence.traces else "nsys"] = {one.rank for one in profiles}
    world = evidence.world_size or next((one.world_size for one in profiles if one.world_size), None)
    return Overview(
        profiles=profiles,
        skew=find_skew(profiles, world),
        world_size=world,
        run=evidence.run,
        environment=evidence.environment,
        problems=problems,
    )


def _files(evidence: Evidence, problems: list[Problem]) -> list[TraceFile | NsysFile]:
    """Traces, else Nsight exports: those number devices, and beside ranks that are known that would be a guess."""
    if not evidence.traces:
        return [*evidence.nsys]
    what = "a Nsight export does not tell the ranks of its devices: not used beside traces"
    problems += [Problem("nsys", one.file, what) for one in evidence.nsys]
    return [*evidence.traces]


def _profiles(files: list[TraceFile | NsysFile], problems: list[Problem]) -> list[RankProfile]:
    found: list[RankProfile] = []
    for file, result in zip(files, _spread(files)):
        kind = "nsys" if isinstance(file, NsysFile) else "trace"
        if isinstance(result, str):
            problems.append(Problem(kind, file.file, result, unread=True))
            continue
        for one in result:
            problems.extend(Problem(kind, file.file, what) for what in one.problems)
            found.append(one)
    return found


def _spread(files: list[TraceFile | NsysFile]) -> Iterable[list[RankProfile] | str]:
    """One result per file, in their order; over the cores when there is much to read."""
    workers = min(len(files), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers < 2 or sum(map(_size, files)) < _LARGE_BYTES:
        return map(read_one, files)
    try:
        with ProcessPoolExecutor(workers, mp_context=_context()) as pool:
            return list(pool.map(read_one, files))
    except (BrokenProcessPool, OSError, RuntimeError):  # a place that allows no processes
        return map(read_one, files)


def _context() -> BaseContext:
    """How a worker starts: as a copy of this process, which imports nothing again, where that is safe."""
    # A thread may hold a lock that a copy would never see free.
    alone = sys.platform == "linux" and threading.active_count() == 1
    return get_context("fork" if alone else "spawn")


def _size(file: TraceFile | NsysFile) -> int:
    try:
        return file.path.stat().st_size * (_GZIP_RATIO if file.path.suffix == ".gz" else 1)
    except OSError:
        return 0


def read_one(file: TraceFile | NsysFile) -> list[RankProfile] | str:
    """The profiles in one file (Nsight puts several devices into one), or why there is none."""
    collecting = gc.isenabled()
    gc.disable()  # columns and tuples hold no cycles: collecting among them is a tenth of the time
    try:
        if isinstance(file, NsysFile):
            return [profile(trace) for trace in file.load()]
        return [profile(file.load())]
    except (OSError, ValueError, RecursionError, MemoryError) as problem:
        return (problem.strerror if isinstance(problem, OSError) else str(problem)) or type(problem).__name__
    finally:
        if collecting:
            gc.enable()


def _unique(profiles: list[RankProfile], problems: list[Problem]) -> list[RankProfile]:
    """One profile per rank, by rank: of several windows of a rank the last one."""
    if len(profiles) == 1 and profiles[0].rank < 0:
        profiles[0].rank = 0
    chosen: dict[int, RankProfile] = {}
    for one in sorted(profiles, key=lambda p: (p.rank, p.base_ns + p.steps[0].start, p.kernels, p.file), reverse=True):
        if one.rank < 0:
            problems.append(Problem("trace", one.file, "it does not say its rank, and there are several: not used"))
        elif one.rank in chosen:
            what = f"a second trace of rank {one.rank}: the later window is used"
            problems.append(Problem("trace", one.file, what, harmless=True))
        else:
            chosen[one.rank] = one
    return [chosen[rank] for rank in sorted(chosen)]
