"""The categories of one rank's memory over time: from its trace, a snapshot, or totals without categories."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.evidence.memory.levels import AT, KINDS, MAX_ROWS, RESERVED, UNKNOWN, Row, highest, total
from diagnostics.evidence.model import Frame, Number
from diagnostics.evidence.readers.snapshot import SnapshotFile
from diagnostics.evidence.readers.timeline import thinned

TENSORS, WINDOW, PROCESS = "tensors", "window_tensors", "process"
MAX_STEPS = 400  # A convention: the number of marks that fit in a drawing.
_MUCH = 0.05  # Share of the peak without an owner that the report explains; a smaller one changes no advice.
NOWHERE = frozenset({"step", "outside", ""})
"""Regions that give no location."""


class Peak(Struct):
    """The moment of a rank's highest memory use."""

    time: Number
    bytes: Annotated[float, Meta(gt=0, le=1e21)]
    kinds: dict[str, Number] = {}
    """Bytes of each kind, excluding memory that is in no tensor."""
    step: int | None = None
    region: str | None = None
    where: Frame | None = None

    @property
    def largest(self) -> list[tuple[str, float]]:
        """The kinds and their sizes, largest first."""
        return largest(self.kinds)


class Request(Struct):
    """An allocation request."""

    time: Number
    bytes: Number


class MemoryStack(Struct, rename={"source": "from"}):
    """One rank's memory by kind over time, as stored in `report.measures`."""

    kinds: Annotated[list[str], Meta(min_length=1)]
    """Kinds that occur, from the bottom of the stack to the top."""
    rows: Annotated[list[list[Number]], Meta(min_length=2)]
    """Rows of time (s from the first row) and bytes of each kind, in ascending order of time."""
    peak: Peak
    of: str = ""
    """Measured quantity: `tensors`, `window_tensors` (allocated in the profiled window), `process` (resident set)."""
    source: str = ""
    """Kind of the evidence: `trace`, `snapshot`, `memory_timeline`, `timeline`, `telemetry`."""
    file: str = ""
    unit: str = "s"
    """Unit of times: `s`, or `event` if times are event numbers."""
    steps: list[tuple[Number, int]] = []
    """Pairs (time, step) at which steps begin."""
    computed: list[str] = []
    """Kinds computed from the size of the model rather than from recorded allocations."""
    capacity_bytes: Number | None = None
    failed: Request | None = None
    """Allocation request that failed."""
    peak_elsewhere_bytes: Number | None = None
    notes: list[str] = []
    """Limitations of the figures, by name in `report/measures.yaml`."""

    def __post_init__(self) -> None:
        """Raise `ValueError` if a row does not have one size for each kind."""
        if any(len(row) != len(self.kinds) + 1 for row in self.rows):
            raise ValueError("each row has a time and a size for each kind")

    @property
    def unused(self) -> set[str]:
        """The kinds that are in no tensor."""
        return set(self.kinds) - set(self.peak.kinds)

    def in_tensors(self, row: Sequence[float]) -> float:
        """Return the bytes of a row that are in tensors."""
        return sum(size for name, size in zip(self.kinds, row[1:], strict=True) if name in self.peak.kinds)


def largest(sizes: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the nonzero sizes with their names, largest first."""
    return sorted(((name, size) for name, size in sizes.items() if size), key=lambda pair: (-pair[1], pair[0]))


def over_time(job: JobMemory, rank: RankMemory) -> MemoryStack | None:
    """Return the stack of the trace or history, whichever has the higher peak; otherwise the totals of the timeline."""
    candidates = filter(None, (_of_trace(job, rank), _of_history(rank)))
    return max(candidates, key=lambda stack: stack.peak.bytes, default=None) or _of_timeline(rank)


def of_samples(samples: Sequence[tuple[float, int]], file: str) -> MemoryStack | None:
    """Return the resident memory of a process from telemetry samples (seconds, bytes)."""
    rows = [(time_s - samples[0][0], _unknown(size, 0)) for time_s, size in thinned(samples, MAX_ROWS)]
    peak = highest(rows)
    if peak is None:
        return None
    return _stacked(rows, peak, of=PROCESS, source="telemetry", file=file, notes=["whole_process"])


def _of_trace(job: JobMemory, rank: RankMemory) -> MemoryStack | None:
    curve = rank.curve
    if curve is None:
        return None
    before, states = job.before_window(rank), job.size.states()
    rows = categories.sweep(curve, before or 0, states, job.size.logits_bytes)
    at_s = (curve.peak_us - curve.start_us) / 1e6
    peak = highest([row for row in rows if row[0] == at_s]) or highest(rows)
    if peak is None:
        return None
    computed = [name for name in categories.shared_out(before or 0, states) if name != categories.UNKNOWN]
    return _stacked(
        rows,
        peak,
        (curve.peak_step, None if curve.peak_region in NOWHERE else curve.peak_region, curve.peak_site),
        of=TENSORS if before is not None else WINDOW,
        source="trace",
        file=rank.trace_file,
        steps=[(max(0.0, (at.start_us - curve.start_us) / 1e6), number) for number, at in curve.steps[:MAX_STEPS]],
        computed=list(dict.fromkeys(categories.KIND_OF[name] for name in computed)),
        notes=["not_before"] * (before is None) + ["cut"] * curve.is_cut,
    )


def _of_history(rank: RankMemory) -> MemoryStack | None:
    if rank.history is None or (history := rank.history[0]).peak is None:
        return None
    _, kind, file = rank.history
    is_stackless = kind == SnapshotFile.kind and history.peak[1][AT[UNKNOWN]] > _MUCH * total(history.peak)
    site = rank.fullest.peak_site if rank.fullest is not None else None
    return _stacked(
        history.rows,
        history.peak,
        (history.peak_step, history.peak_region or None, site),
        of=TENSORS,
        source=kind,
        file=file,
        unit="s" if history.has_times else "event",
        steps=history.steps,
        failed=None if history.failed is None else Request(round(history.failed[0], 6), history.failed[1]),
        notes=["stackless"] * is_stackless + ["no_times"] * (not history.has_times),
    )


def _of_timeline(rank: RankMemory) -> MemoryStack | None:
    steps = rank.steps
    if not steps:
        return None
    exact = all(step.allocated_bytes is not None for step in steps)
    sizes = [((step.allocated_bytes if exact else step.rss_bytes) or 0) for step in steps]
    rows, times = [], []
    for n, size in thinned(list(enumerate(sizes)), MAX_ROWS):
        reserved = max(0, (steps[n].reserved_bytes or 0) - size) if exact else 0
        times.append((steps[n].time_s - steps[0].time_s, steps[n].step))
        rows.append((times[-1][0], _unknown(size, reserved)))
    peak = highest(rows)
    if peak is None:
        return None
    of, note = (TENSORS, "only_totals") if exact else (PROCESS, "whole_process")
    fields = {"of": of, "source": "timeline", "file": rank.timeline_file, "steps": times, "notes": [note]}
    return _stacked(rows, peak, (times[rows.index(peak)][1], None, None), **fields)


def _stacked(
    rows: Sequence[Row],
    peak: Row,
    place: tuple[int | None, str | None, Frame | None] = (None, None, None),
    **fields: Any,
) -> MemoryStack:
    """Return rows of those of `KINDS` that are there, in their order; `place` is step, region and line of the peak."""
    used = [name for name in KINDS if any(row[1][AT[name]] for row in rows)]
    kinds: dict[str, float] = {name: peak[1][AT[name]] for name in used if name != RESERVED}
    fields["steps"] = [(round(time_s, 6), step) for time_s, step in fields.get("steps", ())]
    shown: list[list[float]] = [[round(time_s, 6), *(sizes[AT[name]] for name in used)] for time_s, sizes in rows]
    return MemoryStack(used, shown, Peak(round(peak[0], 6), total(peak), kinds, *place), **fields)


def _unknown(size: int, reserved: int) -> tuple[int, ...]:
    return (*([0] * (len(KINDS) - 2)), size, reserved)
