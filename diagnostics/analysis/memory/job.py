"""Everything known about a job's memory: the model's size, and each rank's curve, gathers, timeline and snapshot."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct, field

from diagnostics.analysis.memory import gathers, model_size, profiled
from diagnostics.analysis.memory.curve import Curve, build
from diagnostics.analysis.memory.gathers import Gather, Traffic, Whole
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.out_of_memory import RanOut, of_snapshot, ran_out
from diagnostics.contract.findings import CITED
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import SIMULATED, CallFile
from diagnostics.evidence.memory.history import History
from diagnostics.evidence.memory.levels import total
from diagnostics.evidence.model import Evidence, Frame
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.memory_timeline import MemoryTimelineFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.readers.snapshot import DeviceMemory, Snapshot, SnapshotFile
from diagnostics.evidence.readers.telemetry import TelemetryFile
from diagnostics.evidence.readers.timeline import MAX_STEPS as MAX_STEPS_OF_RANK, StepMemory, Timeline, TimelineFile
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.evidence.trace.memory_marks import is_worth_reading, read_marks

MAX_FILES = 16
"""Maximum number of files of each kind (traces, dumps, rings, snapshots) to read, starting with the lowest ranks."""
MAX_STEPS = 500_000
"""Maximum number of timeline steps over all ranks; each rank keeps at least `_LEAST_STEPS`."""
_LEAST_STEPS = 64  # Eight for each eighth that `growth` compares.
PREDICTED_RANKS = 64
"""Number of ranks of the job for which a smaller one is a trial."""
_OPTIMIZER = "Optimizer.step#"
H = TypeVar("H", bound=CallFile | SnapshotFile | MemoryTimelineFile | TimelineFile | TraceFile)
T = TypeVar("T")
Job = TypeVar("Job", bound="JobMemory")


class Prediction(Struct, frozen=True):
    """The predicted peak of one rank in a job of `PREDICTED_RANKS` ranks."""

    peak_bytes: int
    without_bytes: int
    """The predicted peak without the memory that the finding is about."""


class Capacity(Struct, frozen=True):
    """The memory available to one rank."""

    size_bytes: int
    source: str
    """File or kind of the evidence."""


class RankMemory(Struct):
    """Memory evidence of one rank."""

    rank: int
    """`UNNAMED` or below if no file names it: each file of an unidentified rank is kept apart."""
    trace_file: str = ""
    curve: Curve | None = None
    trace: Traffic | None = None
    flight: Traffic | None = None
    ring: Traffic | None = None
    timeline: Timeline | None = None
    timeline_file: str = ""
    snapshot: Snapshot | None = None
    snapshot_file: str = ""
    exported: History | None = None
    """History exported by torch's profiler."""
    exported_file: str = ""
    optimizer: str = ""
    """Class of the optimizer, as named in the trace."""

    @property
    def steps(self) -> list[StepMemory]:
        """Steps of the timeline; empty without one."""
        return self.timeline.steps if self.timeline is not None else []

    @property
    def fullest(self) -> DeviceMemory | None:
        """Device of the snapshot with the highest peak that has a history; None if there is none."""
        devices = self.snapshot.devices.values() if self.snapshot is not None else ()
        recorded = (device for device in devices if device.history is not None)
        return max(recorded, key=lambda device: device.peak_bytes, default=None)

    @property
    def history(self) -> tuple[History, str, str] | None:
        """Memory by category over time, with evidence kind and file; a snapshot is preferred to a profiler export."""
        if self.fullest is not None and self.fullest.history is not None:
            return self.fullest.history, SnapshotFile.kind, self.snapshot_file
        return None if self.exported is None else (self.exported, MemoryTimelineFile.kind, self.exported_file)

    def user_gathers(self) -> list[Gather]:
        """Return gathers that belong to no sharded unit, from the most informative evidence that has any."""
        every = [traffic.gathers for traffic in (self.ring, self.flight, self.trace) if traffic]
        own = ([call for call in gathers if call.kind in ("user", "object")] for gathers in every)
        return next(filter(None, own), [])

    @property
    def file(self) -> str:
        """The file that stands for an unidentified rank."""
        return self.snapshot_file or self.exported_file

    def unit_gathers(self, sharded: bool) -> list[Gather]:
        """Return gathers of sharded units, known by annotation or frames; if the job is `sharded`, also by size."""
        every = [traffic.gathers for traffic in (self.trace, self.ring, self.flight) if traffic]
        units = ([call for call in gathers if call.kind == "unit"] for gathers in every)
        certain = ([call for call in calls if sharded or not call.guessed] for calls in units)
        return next(filter(None, certain), [])

    def scattered(self) -> set[int]:
        """Return the full input sizes of reduce_scatters, in bytes."""
        return {size for traffic in (self.trace, self.ring, self.flight) if traffic for size in traffic.scattered}

    def whole(self) -> Whole:
        """Return the total size of all sharded units, as they are gathered."""
        for traffic in (self.trace, self.flight):
            if traffic is not None and traffic.moves and not any(call.guessed for call in traffic.gathers):
                return traffic.whole
        return Whole(0)


class JobMemory(Struct):
    """Memory evidence of a job."""

    evidence: Evidence
    size: ModelSize
    ranks: dict[int, RankMemory] = field(default_factory=dict)
    """Ranks with any evidence of memory, in ascending order, the unidentified ones last."""
    nodes: dict[int, Timeline] = field(default_factory=dict)
    """Telemetry by node."""
    ran_out: list[RanOut] = field(default_factory=list)

    @property
    def out_of_memory(self) -> bool:
        """Whether any evidence shows that memory ran out."""
        run = self.evidence.run
        return bool(self.ran_out) or (run is not None and run.state == "oom")

    @property
    def on_cpu(self) -> bool:
        """Whether the tensors are in host memory, in which case there is neither a caching allocator nor a device."""
        last = [rank.steps[-1] for rank in self.ranks.values() if rank.steps]
        return (
            any(record.device == "cpu" for record in self.ran_out)
            or any(rank.curve is not None and rank.curve.device_type == 0 for rank in self.ranks.values())
            or any(step.rss_bytes is not None and step.reserved_bytes is None for step in last)
        )

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are known to be sharded."""
        return (self.size.shards or 1) > 1

    def before_window(self, rank: RankMemory) -> int | None:
        """Return the bytes on the device before the profiled window, measured or computed from the model states."""
        if rank.curve is None:
            return None
        if rank.curve.baseline_bytes is not None:
            return rank.curve.baseline_bytes
        states, held_bytes = self.size.states(), rank.curve.held_bytes
        if states is None:
            return held_bytes or None
        kept = self.size.traits.keeps_gradients  # DDP's buckets keep the gradients between steps, unseen by Python
        return max(held_bytes, states.parameters + states.optimizer + (states.gradients if kept else 0))

    def peak_bytes(self, rank: RankMemory) -> int | None:
        """Return the peak of tensors on this rank's device, the highest of all evidence; None if unknown."""
        devices = rank.snapshot.devices.values() if rank.snapshot else ()
        in_steps = (step.peak_allocated_bytes or 0 for step in rank.steps)
        own = rank.exported.peak if rank.exported is not None else None
        exported = 0 if own is None else total(own)
        return max(self.curve_peak(rank), *in_steps, *(device.peak_bytes for device in devices), exported) or None

    def curve_peak(self, rank: RankMemory) -> int:
        """Return the recorded peak of a rank in bytes, including memory allocated before the window."""
        if rank.curve is None:
            return 0
        before = 0 if rank.curve.baseline_bytes is not None else self.before_window(rank) or 0
        return rank.curve.peak_bytes + before

    def peak(self) -> int | None:
        """Return the highest peak of any rank, in bytes; None if unknown."""
        return max((self.peak_bytes(rank) or 0 for rank in self.ranks.values()), default=0) or None

    def highest(self) -> RankMemory | None:
        """Return the rank with the highest recorded peak."""
        rank = max(self.ranks.values(), key=self.curve_peak, default=None)
        return rank if rank is not None and rank.curve is not None else None

    def least_bytes(self) -> int:
        """Return a lower bound for the size of all sharded units together; 0 if unknown."""
        return max((rank.whole().least_bytes for rank in self.ranks.values()), default=0)

    def ranks_of(self, seen: Iterable[int], group_size: int) -> tuple[int, ...]:
        """Return the ranks that issued a collective: all ranks if its group spans the job, else those in `seen`."""
        world = self.size.world_size
        return tuple(range(world)) if world and group_size == world else named(seen)

    def ran_out_at(self, ranks: Iterable[int]) -> list[tuple[int | None, Frame]]:
        """Return ranks and the source lines at which they ran out of memory, from their tracebacks; at most 8."""
        named = {rank if rank > UNNAMED else None for rank in ranks}
        records = [record for record in self.ran_out if record.site is not None and record.rank in named]
        return [(record.rank, record.site) for record in records if record.site is not None][:CITED]

    def capacity(self) -> Capacity | None:
        """Return the memory available to a rank: its GPU, from a message or telemetry; on CPU its share of the node."""
        for record in self.ran_out:
            if size_bytes := record.limit_bytes or record.total_bytes:
                return Capacity(size_bytes, record.item.file)
        for node in self.nodes.values():
            totals = [device.total_bytes for device in node.devices.values() if device.total_bytes]
            if totals:
                return Capacity(min(totals), "telemetry")
            if node.host_total_bytes and node.rank_rss:
                return Capacity(node.host_total_bytes // len(node.rank_rss), "telemetry")
        return None

    def predicted(self, fixed_bytes: int = 0, linear_bytes: int = 0) -> Prediction | None:
        """Return a rank's peak on `PREDICTED_RANKS` ranks; None if it is unknown or the job already has that many.

        Model states shrink as they are sharded further, what is gathered whole stays (`fixed_bytes`), outputs that hold
        every rank's part grow with the ranks (`linear_bytes`): exponents over world_size of -1, 0 and +1 (measured).
        """
        world, peak = self.size.world_size, self.peak()
        if not world or peak is None or world >= PREDICTED_RANKS:
            return None
        now, then = self.size.states(), self.size.states(PREDICTED_RANKS)
        states = then.total - now.total if now is not None and then is not None else 0
        rest = max(0, peak - fixed_bytes - linear_bytes + states)
        return Prediction(rest + fixed_bytes + linear_bytes * PREDICTED_RANKS // world, rest)


def read(evidence: Evidence, kind: type[Job]) -> Job:
    """Read the memory evidence as a job of this kind; unreadable files are reported as problems under coverage."""
    job = kind(evidence, model_size.read(evidence), ran_out=ran_out(evidence))
    _timelines(job)
    reported = {record.rank for record in job.ran_out}
    snapshots = _first(evidence.handles(SnapshotFile))
    for snapshot_file, snapshot in loaded(snapshots, SnapshotFile.load, evidence.problems):
        rank = _of(job, snapshot_file.rank)
        rank.snapshot, rank.snapshot_file = snapshot, snapshot_file.file
        record = of_snapshot(snapshot_file.rank, snapshot_file.file, snapshot)
        same_rank = reported & {snapshot_file.rank, None} if snapshot_file.rank is not None else reported
        job.ran_out += [record] if record is not None and not same_rank else []
    exported = _first(evidence.handles(MemoryTimelineFile))
    for exported_file, history in loaded(exported, MemoryTimelineFile.load, evidence.problems):
        rank = _of(job, exported_file.rank)
        rank.exported, rank.exported_file = history, exported_file.file
    _traces(job)
    _flights(job)
    for ring_file, ring in loaded(_first(evidence.handles(RingFile)), RingFile.read):
        number = ring.rank if ring_file.rank is None else ring_file.rank
        _of(job, number).ring = gathers.of_ring(ring, ring_file.file)
    job.ranks = dict(sorted(job.ranks.items(), key=lambda item: (item[0] <= UNNAMED, abs(item[0]))))
    for rank in job.ranks.values():
        optimizer = "adamw" if "adam" in rank.optimizer.lower() else ""
        ranks = max((call.ranks for call in rank.unit_gathers(sharded=False)), default=1)
        whole = rank.whole()
        job.size = job.size.with_units(whole.least_bytes if whole.is_exact else 0, optimizer, ranks)
    return job


def named(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks without the unidentified ones, ascending."""
    return tuple(sorted({rank for rank in ranks if rank > UNNAMED}))


def _of(job: JobMemory, rank: int | None) -> RankMemory:
    if rank is None:  # It may be any rank of the job, so nothing of another file belongs to it.
        rank = min((0, *job.ranks)) + UNNAMED
    return job.ranks.setdefault(rank, RankMemory(rank))


def _first(handles: Iterable[H]) -> list[H]:
    """Return the handles of the first ranks. Handles without a rank in their name come last, sorted by file."""
    return sorted(handles, key=lambda handle: (handle.rank is None, handle.rank or 0, handle.file))[:MAX_FILES]


def _timelines(job: JobMemory) -> None:
    evidence = job.evidence
    most = min(MAX_STEPS_OF_RANK, max(_LEAST_STEPS, MAX_STEPS // max(1, len(evidence.handles(TimelineFile)))))
    handles = [*evidence.handles(TimelineFile), *evidence.handles(TelemetryFile)]
    handles.sort(key=lambda handle: (handle.rank or 0, handle.file))
    for handle, timeline in loaded(handles, lambda handle: handle.load(most), job.evidence.problems, "timeline"):
        if timeline.steps and handle.rank is not None:
            rank = _of(job, handle.rank)
            rank.timeline, rank.timeline_file = timeline, handle.file
        elif timeline.host_used or timeline.devices:
            job.nodes[handle.rank or 0] = timeline


def _traces(job: JobMemory) -> None:
    limits = job.evidence.limits
    for handle in _first(job.evidence.handles(TraceFile)):
        try:
            if not is_worth_reading(handle.path, limits):
                continue
            marks = read_marks(handle.path, limits)
            number = handle.rank if marks.rank is None else marks.rank
            if number is None or job.ranks.get(number, RankMemory(number)).trace is not None:
                continue  # a second window of one rank adds nothing about gathers
            rank = _of(job, number)
            rank.trace, rank.trace_file = profiled.traffic(marks, handle.file, job.size.world_size), handle.file
            names = (span.name for span in marks.spans if span.name.startswith(_OPTIMIZER))
            rank.optimizer = next(names, "").removeprefix(_OPTIMIZER).partition(".")[0]
            rank.curve = build(marks)
            if rank.curve is not None:
                profiled.mark_outputs(rank.curve, rank.trace.gathers)
                profiled.mark_lent(rank.curve, marks.calls)
            if marks.has_functions:
                profiled.add_sites(handle, rank.trace, rank.curve)
        except (OSError, ValueError):
            continue  # reported by the causes of slow steps


def _flights(job: JobMemory) -> None:
    handles = [*job.evidence.handles(FlightFile), *job.evidence.files.get(SIMULATED, ())]
    at_least = max((handle.rank or 0 for handle in handles), default=0) + 1
    for handle, dumps in loaded(_first(handles), lambda handle: handle.load()):
        for dump in dumps:
            number = dump.rank if dump.rank is not None else handle.rank
            if number is None:
                continue
            rank, world = _of(job, number), job.size.world_size or dump.world_size or at_least
            traffic = gathers.of_calls(dump.calls, dump.members, handle.file, world)
            callers_known = rank.flight is not None and any(call.kind != "unknown" for call in rank.flight.gathers)
            if not callers_known and (rank.flight is None or len(traffic.gathers) >= len(rank.flight.gathers)):
                rank.flight = traffic
