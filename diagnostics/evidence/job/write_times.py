"""Whether files of all kinds can be of one job, by when and by which process they were written."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence.limits import head
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.nsys import NsysFile

JOB_S = 90 * 86_400.0
"""No job lasts longer: records of different kinds further apart are of different ones."""
WINDOWS_S = 86_400.0
"""Profiler windows further apart are of one job only if a process wrote into both."""
_HEAD_BYTES = 64 << 10
_EVENT = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|operator|user_annotation|cuda_runtime)"[^{}]{0,4000}?"pid"\s*:\s*(\d{1,12})'
    rb'[^{}]{0,4000}?"ts"\s*:\s*(\d{1,19}(?:\.\d{1,9})?)',
    re.IGNORECASE,
)
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,2000}?"rank"\s*:\s*(\d{1,7})')
_EPOCH_US = 1e15
"""Times below it count from the start of the machine."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a file was written."""

    kind: str
    file: str
    at_s: float
    """Since 1970."""
    rank: int | None = None
    pid: int | None = None


def refuse_mixed(evidence: Evidence, handles: Iterable[Any], standing: Iterable[tuple[str, float]]) -> None:
    """Raise DiagnosticsError if two files cannot be of one job.

    Args:
        evidence: its Nsight exports.
        handles: of all traces.
        standing: file and time (s since 1970) of the last call of flight dumps.
    """
    traces = [moment for handle in handles if (moment := _trace(handle)) is not None]
    began = ((file.file, file.began_s()) for file in evidence.handles(NsysFile))
    nsys = [Moment("Nsight export", file, at) for file, at in began if at is not None]
    flight = [Moment("flight dump", file, at) for file, at in standing if at > 0]
    _one_process_a_rank(evidence, traces)
    _windows(evidence, [*traces, *nsys])
    everything = sorted([*traces, *nsys, *flight], key=attrgetter("at_s", "file"))
    if everything and everything[-1].at_s - everything[0].at_s > JOB_S:
        _refuse(evidence, everything[0], everything[-1])


def _trace(handle: Any) -> Moment | None:
    """Return the moment of the first event of a trace, or None if its clock is unknown."""
    try:
        start = head(handle.path, _HEAD_BYTES)
    except OSError:
        return None
    event, base, stated = _EVENT.search(start), _BASE.search(start), _RANK.search(start)
    if event is None:
        return None
    time_us = float(event[2])
    at_s = int(base[1]) / 1e9 + time_us / 1e6 if base else time_us / 1e6
    rank = int(stated[1]) if stated else handle.rank
    return Moment("trace", handle.file, at_s, rank, int(event[1])) if at_s * 1e6 >= _EPOCH_US else None


def _one_process_a_rank(evidence: Evidence, traces: Sequence[Moment]) -> None:
    """Check that all traces of a rank have the same process id."""
    first: dict[int, Moment] = {}
    for moment in sorted(traces, key=attrgetter("at_s", "file")):
        if moment.rank is not None and (earlier := first.setdefault(moment.rank, moment)).pid != moment.pid:
            why = f"are both of rank {moment.rank}, of processes {earlier.pid} and {moment.pid}"
            _refuse(evidence, earlier, moment, why)


def _windows(evidence: Evidence, moments: Sequence[Moment]) -> None:
    """Windows days apart are of one job where a process is in both."""
    ordered = sorted(moments, key=attrgetter("at_s", "file"))
    for n, (early, late) in enumerate(pairwise(ordered)):
        if late.at_s - early.at_s <= WINDOWS_S:
            continue
        earlier, later = ({m.pid for m in part if m.pid is not None} for part in (ordered[: n + 1], ordered[n + 1 :]))
        if not earlier & later:
            _refuse(evidence, early, late)


def _refuse(evidence: Evidence, one: Moment, other: Moment, why: str = "") -> None:
    why = why or f"were recorded {(other.at_s - one.at_s) / 86_400:,.0f} days apart"
    kinds = one.kind if one.kind == other.kind else f"{one.kind} and {other.kind}"
    files = " and ".join((one.file, other.file))
    raise DiagnosticsError(
        f"{evidence.root} holds files of different jobs: {files} ({kinds}) {why}",
        "put each job into a folder of its own",
    )
