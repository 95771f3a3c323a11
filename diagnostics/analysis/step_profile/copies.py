"""One rank's copies between host and device: amount, kind of host memory, exposed time. Decides nothing."""

import re
from collections import defaultdict

from msgspec import Struct

from diagnostics.analysis.step_profile.breakdown import Covers, charge
from diagnostics.analysis.step_profile.classify import TEXT, Work
from diagnostics.analysis.step_profile.intervals import Ruler, subtract, union
from diagnostics.evidence.trace.host_work import HostCopy, host_copy
from diagnostics.evidence.trace.model import Trace

_NUMBERS = re.compile(r", (?:seq|op_id|sizes) = .*")
"""Suffix that `torch.autograd.profiler.emit_nvtx` adds to the name of an operation."""
_LOOKED_UP = 50  # Number of copies of one kind, the longest first, for which the enclosing annotation is looked up.


class CopyProfile(Struct):
    """All copies of one direction and kind of host memory."""

    kind: HostCopy
    count: int = 0
    size_bytes: int = 0
    """Total size; 0 if not recorded."""
    duration: int = 0
    """Total duration in ns."""
    exposed: int = 0
    """Time in ns without concurrent compute; time shared with an earlier copy counts for that one."""
    within: str = ""
    """Innermost annotation in which the host issued most of them; empty if none."""


def copy_profiles(trace: Trace, work: Work, covers: Covers) -> list[CopyProfile]:
    """Return the copies between host and device by kind, in descending order of exposed time."""
    kinds = [host_copy(name) for name in trace.names] if work.memory else []
    rows = []
    columns = zip(trace.device.start, trace.device.end, trace.device.name, trace.is_memory)
    for at, (start, end, name, memory) in enumerate(columns):
        if memory and (kind := kinds[name]) is not None:
            rows.append((start, end, at, kind))
    rows.sort(key=lambda row: row[:3])
    cover = union([row[:2] for row in rows])
    alone = charge(Ruler(subtract(cover, covers.compute.cover)), [row[:2] for row in rows])
    profiles: dict[HostCopy, CopyProfile] = {}
    launches: dict[HostCopy, list[tuple[int, int, int]]] = defaultdict(list)
    for (start, end, at, kind), exposed in zip(rows, alone):
        own = profiles.setdefault(kind, CopyProfile(kind))
        own.count += 1
        own.size_bytes += trace.copied_bytes.get(at, 0)
        own.duration += end - start
        own.exposed += exposed
        launches[kind].append((end - start, trace.launch[at], trace.launcher[at]))
    for kind, own in profiles.items():
        own.within = _within(trace, sorted(launches[kind], reverse=True)[:_LOOKED_UP])
    return sorted(profiles.values(), key=lambda own: (-own.exposed, own.kind))


def _within(trace: Trace, spans: list[tuple[int, int, int]]) -> str:
    marks, time = trace.marks, dict[str, int]()
    rows = zip(marks.start, marks.end, marks.name, marks.lane)
    around = [row for row in rows if not TEXT["step"].match(trace.names[row[2]])]
    for length, launch, lane in spans:
        inside = [(end - start, name) for start, end, name, of in around if start <= launch < end and of == lane]
        if inside:
            name = _NUMBERS.sub("", trace.names[min(inside)[1]])
            time[name] = time.get(name, 0) + length
    return max(time, key=lambda name: time[name], default="")
