"""All that the memory causes look at, read once: sizes, and per rank the curve, gathers, timeline and snapshot.

Gathers are the same on all ranks of a group, so of the large files those of the first ranks are read.
Decides nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from diagnostics.analysis.memory import gathers as collectives
from diagnostics.analysis.memory import model_size as facts
from diagnostics.analysis.memory import trace_gathers as annotated
from diagnostics.analysis.memory.buffers import mark_lent, mark_outputs
from diagnostics.analysis.memory.curve import Curve, build
from diagnostics.analysis.memory.gathers import Gather, Traffic
from diagnostics.analysis.memory.model_size import Facts, States
from diagnostics.analysis.memory.out_of_memory import RanOut, ran_out
from diagnostics.analysis.memory.source_lines import place
from diagnostics.analysis.memory.units import Whole
from diagnostics.contract.findings import EvidenceItem
from diagnostics.contract.formatting import bytes_text as size
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.readers.snapshot import Snapshot
from diagnostics.evidence.readers.timeline import MAX_STEPS as EACH
from diagnostics.evidence.readers.timeline import Timeline
from diagnostics.evidence.trace.allocations import read_memory_events
from diagnostics.evidence.trace.memory_marks import TraceMarks, is_worth_reading, read_marks

MAX_RANKS = 8
"""Ranks whose traces, dumps and rings are read."""
MAX_SNAPSHOTS = 16
MAX_STEPS = 500_000
"""Of the timelines of all ranks together; each keeps at least `_LEAST_STEPS`."""
_LEAST_STEPS = 64
_OPTIMIZER = "Optimizer.step#"
T = TypeVar("T")


@dataclass(slots=True)
class RankMemory:
    """One rank."""

    rank: int
    trace_file: str = ""
    curve: Curve | None = None
    trace: Traffic | None = None
    flight: Traffic | None = None
    ring: Traffic | None = None
    timeline: Timeline | None = None
    timeline_file: str = ""
    snapshot: Snapshot | None = None
    snapshot_file: str = ""
    optimizer: str = ""
    """Class of the optimizer, as the trace names it."""

    def user_gathers(self) -> list[Gather]:
        """Gathers that are not a sharded unit's, from the evidence that knows most about each."""
        for traffic in (self.ring, self.flight, self.trace):
            found = [one for one in traffic.gathers if one.kind in ("user", "object")] if traffic else []
            if found:
                return found
        return []

    def unit_gathers(self, sharded: bool) -> list[Gather]:
        """Gathers of sharded units: by annotation or frames, and by size if the job is known to be `sharded`."""
        for traffic in (self.trace, self.ring, self.flight):
            found = [one for one in traffic.gathers if one.kind == "unit"] if traffic else []
            found = [one for one in found if sharded or not one.guessed]
            if found:
                return found
        return []

    def scattered(self) -> set[int]:
        """Full sizes, in bytes, that are reduced and scattered as well as gathered."""
        return {size for traffic in (self.trace, self.ring, self.flight) if traffic for size in traffic.scattered}

    def whole(self) -> Whole:
        """All sharded units together, as they are gathered."""
        for traffic in (self.trace, self.flight):
            if traffic is not None and traffic.moves and not any(one.guessed for one in traffic.gathers):
                return traffic.whole
        return Whole(0)


@dataclass(slots=True)
class Situation:
    """The whole job."""

    evidence: Evidence
    facts: Facts
    ranks: dict[int, RankMemory] = field(default_factory=dict)
    """Ascending."""
    nodes: dict[int, Timeline] = field(default_factory=dict)
    """Telemetry by node."""
    ran_out: list[RanOut] = field(default_factory=list)

    @property
    def is_dtk(self) -> bool:
        """Whether remedies are overrides."""
        return self.evidence.run is not None

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out, by any evidence."""
        run = self.evidence.run
        state = run.status.state if run is not None and run.status is not None else ""
        return bool(self.ran_out) or state == "oom" or any(r.snapshot and r.snapshot.out_of_memory for r in self.all())

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are known to be sharded."""
        return (self.facts.shards or 1) > 1

    def all(self) -> list[RankMemory]:
        """Ranks with any evidence of memory."""
        return list(self.ranks.values())

    def states(self, world_size: int | None = None) -> States | None:
        """Model states of one rank."""
        return self.facts.states(world_size)

    def before_window(self, rank: RankMemory) -> int | None:
        """Bytes that lay on the device before the profiled window: measured, or computed from the model states."""
        curve = rank.curve
        if curve is None:
            return None
        if curve.baseline_bytes is not None:
            return curve.baseline_bytes
        states = self.states()
        if states is None:
            return None
        kept = self.facts.strategy in ("ddp", "zero1", "dp")  # DDP's buckets hold the gradients between steps
        return states.parameters + states.optimizer + (states.gradients if kept else 0)

    def peak_bytes(self, rank: RankMemory) -> int | None:
        """Of tensors on this rank's device: curve with what lay there before, allocator's figure, snapshot."""
        found = [size for size in (self._curve_peak(rank), *_recorded_peaks(rank)) if size]
        return max(found, default=None)

    def _curve_peak(self, rank: RankMemory) -> int | None:
        if rank.curve is None:
            return None
        if rank.curve.baseline_bytes is not None:
            return rank.curve.peak_bytes
        return rank.curve.peak_bytes + (self.before_window(rank) or 0)

    def peak(self) -> int | None:
        """Of the rank with the highest."""
        return max((size for one in self.all() if (size := self.peak_bytes(one)) is not None), default=None)

    def peak_items(self) -> tuple[EvidenceItem, ...]:
        """Where the highest recorded peak stood, as a line of evidence."""
        rank = max(self.all(), key=lambda one: self._curve_peak(one) or 0, default=None)
        if rank is None or rank.curve is None:
            return ()
        curve = rank.curve
        step = f" in step {curve.peak_step}" if curve.peak_step is not None else ""
        place = f", {curve.peak_region}" if curve.peak_region not in ("step", "outside") else ""
        detail = f"peak of rank {rank.rank}: {size(self._curve_peak(rank) or 0)}{step}{place}"
        return (EvidenceItem("trace", rank.trace_file, detail),)

    def least_bytes(self) -> int:
        """All sharded units together have at least so many bytes; 0 = not known."""
        return max((rank.whole().least_bytes for rank in self.all()), default=0)

    def ranks_of(self, seen: Iterable[int], group_size: int) -> tuple[int, ...]:
        """Ranks that issued a collective: all of the job when its group is the job, else those it was seen on."""
        world = self.facts.world_size
        return tuple(range(world)) if world and group_size == world else tuple(sorted(set(seen)))


def _recorded_peaks(rank: RankMemory) -> Iterator[int | None]:
    if rank.timeline is not None:
        yield max((step.peak_allocated_bytes or 0 for step in rank.timeline.steps), default=None)
    for device in rank.snapshot.devices.values() if rank.snapshot else ():
        yield device.peak_bytes


def read(evidence: Evidence) -> Situation:
    """Read what there is; what cannot be read is a problem under coverage."""
    found = Situation(evidence, facts.read(evidence), ran_out=ran_out(evidence))
    _timelines(found)
    _snapshots(found)
    _traces(found)
    _flights(found)
    _rings(found)
    found.ranks = dict(sorted(found.ranks.items()))
    for rank in found.all():
        optimizer = "adamw" if "adam" in rank.optimizer.lower() else ""
        ranks = max((one.ranks for one in rank.unit_gathers(sharded=False)), default=1)
        whole = rank.whole()
        found.facts = found.facts.with_units(whole.least_bytes if whole.is_exact else 0, optimizer, ranks)
    return found


def _of(found: Situation, rank: int) -> RankMemory:
    return found.ranks.setdefault(rank, RankMemory(rank))


def _first(handles: Iterable[T]) -> list[T]:
    """Of the first ranks; without a rank in the name last, by file."""
    ordered = sorted(handles, key=lambda one: (one.rank is None, one.rank or 0, one.file))  # type: ignore[attr-defined]
    return ordered[: MAX_RANKS * 2]


def _timelines(found: Situation) -> None:
    most = min(EACH, max(_LEAST_STEPS, MAX_STEPS // max(1, len(found.evidence.timelines))))
    for handle in sorted(
        [*found.evidence.timelines, *found.evidence.telemetry], key=lambda one: (one.rank or 0, one.file)
    ):
        try:
            timeline = handle.load(most)
        except (OSError, ValueError) as problem:
            found.evidence.problems.append(Problem("timeline", handle.file, str(problem), unread=True))
            continue
        if timeline.steps and handle.rank is not None:
            rank = _of(found, handle.rank)
            rank.timeline, rank.timeline_file = timeline, handle.file
        elif timeline.host_used or timeline.devices:
            found.nodes[handle.rank or 0] = timeline


def _snapshots(found: Situation) -> None:
    ordered = sorted(found.evidence.snapshots, key=lambda one: (one.rank or 0, one.file))
    for handle in ordered[:MAX_SNAPSHOTS]:
        try:
            snapshot = handle.load()
        except (OSError, ValueError) as problem:
            found.evidence.problems.append(Problem("snapshot", handle.file, str(problem), unread=True))
            continue
        rank = _of(found, handle.rank or 0)
        rank.snapshot, rank.snapshot_file = snapshot, handle.file


def _traces(found: Situation) -> None:
    limits, world = found.evidence.limits, found.facts.world_size
    for handle in _first(found.evidence.traces):
        try:
            if not is_worth_reading(handle.path, limits):
                continue
            marks = read_marks(handle.path, limits)
            number = handle.rank if marks.rank is None else marks.rank
            if number is None or found.ranks.get(number, RankMemory(number)).trace is not None:
                continue  # a second window of one rank says nothing new about gathers
            rank = _of(found, number)
            rank.trace, rank.trace_file = annotated.of_trace(marks, handle.file, world), handle.file
            rank.optimizer = _optimizer(marks)
            if marks.has_memory:
                rank.curve = build(read_memory_events(handle.path, limits), marks)
                if rank.curve is not None:
                    mark_outputs(rank.curve, rank.trace.gathers)
                    mark_lent(rank.curve, marks.calls)
            if marks.has_functions:
                place(handle, rank.trace.gathers, rank.trace.threads, rank.curve, marks.has_memory)
        except (OSError, ValueError):
            continue  # the overlap detectors say so


def _optimizer(marks: TraceMarks) -> str:
    name = next((span.name for span in marks.spans if span.name.startswith(_OPTIMIZER)), "")
    return name.removeprefix(_OPTIMIZER).partition(".")[0]


def _flights(found: Situation) -> None:
    handles = [*found.evidence.flight, *found.evidence.simulated]
    at_least = max((handle.rank or 0 for handle in handles), default=0) + 1
    for handle in _first(handles):
        try:
            dumps = handle.load()
        except (OSError, ValueError):
            continue  # the hang detectors say so
        for dump in dumps:
            number = dump.rank if dump.rank is not None else handle.rank
            if number is None:
                continue
            rank = _of(found, number)
            world = found.facts.world_size or dump.world_size or at_least
            traffic = collectives.of_calls(dump.calls, dump.members, handle.file, world)
            known = rank.flight is not None and any(one.kind != "unknown" for one in rank.flight.gathers)
            if not known and (rank.flight is None or len(traffic.gathers) >= len(rank.flight.gathers)):
                rank.flight = traffic


def _rings(found: Situation) -> None:
    for handle in _first(getattr(found.evidence, "rings", [])):
        try:
            ring = handle.read()
        except (OSError, ValueError):
            continue  # the hang detectors say so
        number = ring.rank if handle.rank is None else handle.rank
        _of(found, number).ring = collectives.of_ring(ring, handle.file)
