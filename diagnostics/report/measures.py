"""Reads `report.measures` for charts: values that are missing or malformed are omitted, never an error.

Measures are written by detectors, including users' own; their figures and names come from evidence.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, TypeVar

import msgspec

from diagnostics.analysis.memory.categories import GATHERED
from diagnostics.analysis.memory.over_time import PROCESS, MemoryStack, Peak, largest
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import UNNAMED, bytes_text, counted, joined, ranks_spoken, region_text
from diagnostics.evidence.model import Number
from diagnostics.evidence.readers.timeline import thinned

RANKS_DRAWN = 64  # Maximum number of ranks drawn, culprits first; report.json has all ranks.
POINTS_DRAWN = 400  # Maximum number of points of a curve: a page is about twice as many pixels wide.
_SHOWN = 8  # Maximum number of categories of a peak in a row of the table.
_Measured = TypeVar("_Measured")
_PARTS = ("wall_ms", "compute_ms", "communication_ms", "overlapped_ms", "exposed_ms", "memory_ms", "idle_ms")
_NOTES: dict[str, str] = table_beside(__file__)["notes"]
_MEASURED: dict[str, str] = table_beside(__file__)["of"]


class Call(msgspec.Struct):
    """One collective of a rank in the timeline."""

    position: int
    op: str = ""
    signature: str = ""
    state: str = ""
    where: str = ""
    place: str = ""
    """File name and line of `where`."""


class Timeline(msgspec.Struct):
    """The last collectives of a group around the divergence."""

    ranks: dict[int, list[Call]]
    group: str = ""


class RankMemory(msgspec.Struct):
    """Memory of a rank."""

    file: str = ""
    """The file of an unidentified rank."""
    peak_bytes: Number = 0.0
    curve: list[tuple[Number, Number]] = []
    """(seconds, bytes)"""
    categories: dict[str, Number] = {}
    """Bytes per category at the peak."""
    over_time: MemoryStack | None = None
    """Composition of the memory over time."""

    def __post_init__(self) -> None:
        """Set the peak if it was not measured, and thin out the curve."""
        sizes = (size for _, size in self.curve)
        self.peak_bytes = self.peak_bytes or max(sizes, default=sum(self.categories.values()))
        self.curve = thinned(self.curve, POINTS_DRAWN)

    def name(self, rank: int) -> str:
        """Return `rank 3`, or the file of an unidentified rank."""
        return self.file or f"rank {rank}"

    @property
    def at_peak(self) -> list[tuple[str, float]]:
        """The categories, the largest first; without categories, the composition of the peak of `over_time`."""
        return largest(self.categories) or (self.over_time.peak.largest if self.over_time is not None else [])


class Planned(msgspec.Struct):
    """The planned and the actual peak."""

    planned_bytes: Number
    planned: dict[str, Number] = {}
    was_bytes: Number = 0.0
    was: dict[str, Number] = {}
    rank: int = 0
    ranks: int = 1
    """Number of ranks with a known peak."""
    missing: str = ""
    """What was not recorded and prevents a comparison."""
    differs: list[str] | None = None
    """Categories that differ most; None if the peak is close to the plan."""
    with_copies_bytes: Number = 0.0
    gathered_blocks: int | None = None
    """Blocks whose gathered parameters were alive at once."""

    def difference(self, name: str) -> str:
        """Return `activations 5 GiB instead of 2 GiB`."""
        planned, was = self.planned.get(name, 0.0), self.was.get(name, 0.0)
        if name == GATHERED and was > planned and (self.gathered_blocks or 0) > 1:
            return f"{name} of {self.gathered_blocks} blocks alive at once ({bytes_text(was)})"
        if not planned:
            return f"{name} {bytes_text(was)} instead of none"
        return f"{name} {bytes_text(was)} instead of {bytes_text(planned)}"


class RankTimes(msgspec.Struct):
    """Time of a rank; compute, exposed, copies and idle add up to the wall time."""

    compute_ms: Number | None = None
    communication_ms: Number | None = None
    overlapped_ms: Number | None = None
    exposed_ms: Number | None = None
    memory_ms: Number | None = None
    """Time of copies."""
    idle_ms: Number | None = None
    wall_ms: Number | None = None
    overlap_percent: Number | None = None


class Breakdown(msgspec.Struct, frozen=True):
    """Time of a step in the profiled window, mean over ranks and steps, in ms."""

    wall_ms: float
    compute_ms: float
    communication_ms: float
    overlapped_ms: float
    exposed_ms: float
    memory_ms: float
    idle_ms: float
    waiting_ms: float | None
    """Part of the exposed time in which ranks waited for a late one; None if it cannot be determined."""


class RunFigures(msgspec.Struct):
    """Figures in the summary of a dtk run."""

    step_time_s: Number | None = None
    tokens_per_s: Number | None = None
    mfu: Number | None = None
    peak_memory_bytes: Number | None = None
    device_memory_bytes: Number | None = None
    speed_unit: str = "token"


class Track(msgspec.Struct):
    """One step of a rank: name, start, end and waiting for late ranks of each stretch, in ms."""

    length_ms: Annotated[float, msgspec.Meta(gt=0, le=1e21)]
    regions: list[tuple[str, Number, Number, Number]] = []
    calls: list[tuple[str, Number, Number, Number]] = []
    idle: list[tuple[str, Number, Number, Number]] = []


class StepTimeline(msgspec.Struct):
    """One step of several ranks."""

    ranks: dict[int, Track]
    step: int | None = None


class Window(msgspec.Struct):
    """The window that the figures of overlap cover."""

    window: str
    steps: int = 0
    step_ms: Number = 0.0
    steps_marked: bool = False


def timeline(measures: Mapping[str, Any]) -> Timeline | None:
    """Return `measures.hang.timeline`; None if it has no calls."""
    calls = _typed(_part(measures, "hang", "timeline"), Timeline)
    return calls if calls is not None and any(calls.ranks.values()) else None


def memory(measures: Mapping[str, Any], culprits: Sequence[int] = ()) -> dict[int, RankMemory]:
    """Return rank -> its memory from `measures.memory`, if it can be drawn; unidentified ranks are negative."""
    unnamed = enumerate(_part(measures, "memory", "unidentified").items(), 1)
    files = {str(n * UNNAMED): {**record, "file": file} for n, (file, record) in unnamed if isinstance(record, dict)}
    records = {**_part(measures, "memory", "ranks"), **files}
    stacked = [rank for rank, record in records.items() if isinstance(record, dict) and "over_time" in record]
    drawn = _ranks(
        records, RankMemory, [*culprits, *(int(rank) for rank in stacked if str(rank).removeprefix("-").isdecimal())]
    )
    return {rank: record for rank, record in drawn.items() if record.peak_bytes > 0}


def of_what(stack: MemoryStack | None, unknown: str = "memory") -> str:
    """Return the name of what a stack measures; `unknown` without one."""
    return _MEASURED.get(stack.of, unknown) if stack is not None else unknown


def comparable(ranks: Mapping[int, RankMemory]) -> dict[int, RankMemory]:
    """Return the ranks whose tensors were measured, else all: the memory of a whole process is not comparable."""
    tensors = {rank: own for rank, own in ranks.items() if own.over_time is None or own.over_time.of != PROCESS}
    return tensors or dict(ranks)


def drawn_as(measures: Mapping[str, Any]) -> dict[str, str]:
    """Return category of memory -> kind as which it is drawn over time, from `measures.memory.kind_of`."""
    return _typed(_part(measures, "memory", "kind_of"), dict[str, str]) or {}


def memory_rows(ranks: Mapping[int, RankMemory]) -> list[tuple[str, ...]]:
    """Return a heading and a row per rank, as text."""
    rows = [
        (
            record.file or str(rank),
            bytes_text(record.peak_bytes),
            (peak_place(record.over_time.peak) if record.over_time is not None else "") or "-",
            ", ".join(
                f"{name} {bytes_text(size)}{share_text(size, record.peak_bytes)}"
                for name, size in record.at_peak[:_SHOWN]
            ),
        )
        for rank, record in ranks.items()
    ]
    return [("rank", "peak", "where", "at the peak"), *rows]


def memory_notes(stack: MemoryStack) -> list[str]:
    """Return notes on the limits of the figures."""
    notes = [_NOTES.get(note, note) for note in stack.notes]
    if stack.computed:
        notes.append(f"{joined(stack.computed)} are computed from the size of the model, not measured")
    if stack.peak_elsewhere_bytes:
        highest = bytes_text(stack.peak_elsewhere_bytes)
        notes.append(f"the highest peak of the whole run, {highest}, is outside the plotted range")
    return notes


def plan_lines(measures: Mapping[str, Any], *, everything: bool = True) -> list[str]:
    """Return how the peak differs from the plan; with `everything` also why it cannot be compared."""
    try:
        plan = msgspec.convert(_part(measures, "memory", "plan"), Planned)
    except ValueError:
        return []
    planned = f"planned {bytes_text(plan.planned_bytes)}"
    if plan.missing:
        why = "the memory of tensors was not recorded (record=full), and that of the process does not measure it"
        return [f"{planned}; the actual peak is unknown: {why}"] if everything else []
    if plan.differs is None:
        return []
    # If the report has the peak with different digits elsewhere, this line explains why.
    was, whole = bytes_text(plan.was_bytes), bytes_text(plan.with_copies_bytes)
    left_out = (f" on {ranks_spoken([plan.rank])}" if plan.ranks > 1 else "") + (
        f" without gloo's own copies ({whole} with them)" if whole != was else ""
    )
    why = ", ".join(plan.difference(name) for name in plan.differs)
    return [f"{planned}, actual {was}{left_out}{': ' if why else ''}{why}"]


def overlap(measures: Mapping[str, Any], culprits: Sequence[int] = ()) -> dict[int, RankTimes]:
    """Return rank -> its times, of ranks that can be drawn, from `measures.overlap.ranks`."""
    drawn = _ranks(_part(measures, "overlap", "ranks"), RankTimes, culprits)
    return {rank: record for rank, record in drawn.items() if record != RankTimes()}


def breakdown(measures: Mapping[str, Any]) -> Breakdown | None:
    """Return the mean over ranks of one step, from `report.measures.overlap`."""
    steps = _part(measures, "overlap").get("steps")
    records = [record for record in _part(measures, "overlap", "ranks").values() if isinstance(record, dict)]
    if not records or not isinstance(steps, int) or steps < 1:
        return None
    counts = [len(r["steps"]) if isinstance(r.get("steps"), list) and r["steps"] else steps for r in records]

    def mean(key: str) -> float:
        return fmean(float(record.get(key) or 0.0) / count for record, count in zip(records, counts, strict=True))

    waiting = all(record.get("waiting_exposed_ms") is not None for record in records)
    return Breakdown(**{key: mean(key) for key in _PARTS}, waiting_ms=mean("waiting_exposed_ms") if waiting else None)


def run_figures(measures: Mapping[str, Any]) -> RunFigures:
    """Return `measures.run`."""
    return _typed(_part(measures, "run"), RunFigures) or RunFigures()


def step_timeline(measures: Mapping[str, Any]) -> StepTimeline | None:
    """Return `measures.overlap.timeline`; None if it has no ranks."""
    timeline = _typed(_part(measures, "overlap", "timeline"), StepTimeline)
    return timeline if timeline is not None and timeline.ranks else None


def lost_shares(measures: Mapping[str, Any]) -> dict[int, tuple[float, str]]:
    """Return rank -> (share of its time without compute or copies, 0 to 1; what that was), for all traced ranks."""
    shares = {}
    for rank, value in _part(measures, "overlap", "ranks").items():
        times = _typed(value, RankTimes)
        if times is not None and times.wall_ms and str(rank).isdecimal():
            exposed, idle = times.exposed_ms or 0.0, times.idle_ms or 0.0
            hint = f"rank {rank}: {exposed:.2f} ms exposed, {idle:.2f} ms idle of {times.wall_ms:.2f} ms"
            shares[int(rank)] = (min(max((exposed + idle) / times.wall_ms, 0.0), 1.0), hint)
    return dict(sorted(shares.items()))


def overlap_rows(ranks: Mapping[int, RankTimes]) -> list[tuple[str, ...]]:
    """Return a heading and a row per rank, as text; copies only if there are any."""
    copies = any(record.memory_ms for record in ranks.values())
    names = [name for name in RankTimes.__struct_fields__ if copies or name != "memory_ms"]
    rows = [
        (str(rank), *("-" if (value := getattr(record, name)) is None else f"{value:.2f}" for name in names))
        for rank, record in ranks.items()
    ]
    heading = (name.replace("memory", "copies").replace("_", " ").replace("percent", "%") for name in names)
    return [("rank", *heading), *rows]


def overlap_window(measures: Mapping[str, Any]) -> str:
    """Return the window of the figures, such as `whole file, 6 steps of 76.9 ms`; empty if not known."""
    span = _typed(_part(measures, "overlap"), Window)
    if span is None or not (span.steps_marked and span.steps and span.step_ms):
        return span.window if span is not None else ""
    return f"{span.window}, {counted(span.steps, 'step')} of {span.step_ms:.1f} ms"


def peak_place(peak: Peak) -> str:
    """Return a location such as `step 3, backward, at train.py:88 in loss_of`; empty if none was recorded."""
    parts = ["" if peak.step is None else f"step {peak.step}", region_text(peak.region or "")]
    parts += [f"at {peak.where.file}:{peak.where.line} in {peak.where.function}"] if peak.where else []
    return ", ".join(filter(None, parts))


def share_text(part_bytes: float, whole_bytes: float) -> str:
    """Return a text such as ` (22%)`; empty if the whole is 0."""
    return f" ({min(part_bytes / whole_bytes, 1.0):.0%})" if whole_bytes > 0 else ""


def _part(measures: Mapping[str, Any], *names: str) -> Mapping[Any, Any]:
    part: Any = measures
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _typed(value: object, kind: type[_Measured]) -> _Measured | None:
    try:
        return msgspec.convert(value, kind, strict=False)  # JSON has converted rank numbers to text.
    except (ValueError, RecursionError):
        return None


def _ranks(records: object, kind: type[_Measured], first: Sequence[int]) -> dict[int, _Measured]:
    """Return the ranks to draw, ascending; ranks in `first` are always among them."""
    by_rank = _typed(records, dict[int, Any]) or {}
    chosen = list(dict.fromkeys([*(rank for rank in first if rank in by_rank), *sorted(by_rank)]))[:RANKS_DRAWN]
    return {rank: record for rank in sorted(chosen) if (record := _typed(by_rank[rank], kind)) is not None}
