"""What one rank's memory consisted of over time: by its trace, a snapshot, else totals that nobody can attribute."""

from collections.abc import Sequence

from msgspec import Struct, field

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.evidence.memory.levels import AT, KINDS, MAX_ROWS, UNKNOWN, Row, highest, total
from diagnostics.evidence.model import Frame
from diagnostics.evidence.readers.snapshot import DeviceMemory
from diagnostics.evidence.readers.timeline import thinned

TENSORS, WINDOW, PROCESS = "tensors", "tensors allocated in the profiled window", "the process (resident set)"
MAX_STEPS = 400  # A convention: marks that a drawing has room for.
_MUCH = 0.05  # A convention: less of the peak without an owner changes no advice.
NOWHERE = frozenset({"step", "outside", ""})
"""Regions that say nothing."""


class OverTime(Struct):
    """One rank. Times are seconds from the first row; rows: `diagnostics.evidence.memory.levels`."""

    of: str
    kind: str
    """Of the evidence: `trace`, `snapshot`, `timeline`, `telemetry`."""
    file: str
    rows: list[Row]
    peak: Row
    has_times: bool = True
    """Otherwise the times are numbers of events."""
    step: int | None = None
    region: str = ""
    site: Frame | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, step) where steps begin."""
    computed: tuple[str, ...] = ()
    """Kinds that rest on the size of the model rather than on recorded allocations."""
    failed: tuple[float, int] | None = None
    """(when, bytes) of a request that could not be met."""
    notes: list[str] = field(default_factory=list)
    """What limits the figures, by the names in `report/measures.yaml`."""


def over_time(job: JobMemory, rank: RankMemory) -> OverTime | None:
    """Of trace and snapshot the one that saw more bytes; else totals."""
    candidates = filter(None, (_of_trace(job, rank), _of_snapshot(rank)))
    return max(candidates, key=lambda stack: total(stack.peak), default=None) or _of_timeline(rank)


def of_samples(samples: Sequence[tuple[float, int]], file: str) -> OverTime | None:
    """Of a process by telemetry: (seconds, resident bytes)."""
    rows = [(time_s - samples[0][0], _unknown(size, 0)) for time_s, size in thinned(samples, MAX_ROWS)]
    peak = highest(rows)
    return None if peak is None else OverTime(PROCESS, "telemetry", file, rows, peak, notes=["whole_process"])


def _of_trace(job: JobMemory, rank: RankMemory) -> OverTime | None:
    curve = rank.curve
    if curve is None:
        return None
    before, states = job.before_window(rank), job.size.states()
    rows = categories.sweep(curve, before or 0, states, job.size.logits_bytes)
    at_s = (curve.peak_us - curve.start_us) / 1e6
    peak = highest([row for row in rows if row[0] == at_s]) or highest(rows)
    if peak is None:
        return None
    result = OverTime(TENSORS if before is not None else WINDOW, "trace", rank.trace_file, rows, peak)
    result.step, result.site = curve.peak_step, curve.peak_site
    result.region = "" if curve.peak_region in NOWHERE else curve.peak_region
    starts = ((span.start_us - curve.start_us, number) for number, span in curve.steps[:MAX_STEPS])
    result.steps = [(max(0.0, start_us / 1e6), number) for start_us, number in starts]
    computed = [name for name in categories.shared_out(before or 0, states) if name != categories.UNKNOWN]
    result.computed = tuple(dict.fromkeys(categories.KIND_OF[name] for name in computed))
    if before is None:
        result.notes.append("not_before")
    if curve.is_cut:
        result.notes.append("cut")
    return result


def _of_snapshot(rank: RankMemory) -> OverTime | None:
    devices = list(rank.snapshot.devices.values()) if rank.snapshot else []
    recorded = (device for device in devices if device.history is not None)
    largest: DeviceMemory | None = max(recorded, key=lambda device: device.peak_bytes, default=None)
    history = largest.history if largest is not None else None
    if largest is None or history is None or history.peak is None:
        return None
    result = OverTime(TENSORS, "snapshot", rank.snapshot_file, history.rows, history.peak, history.has_times)
    result.step, result.region, result.site = history.peak_step, history.peak_region, largest.peak_site
    result.failed, result.steps = history.failed, history.steps
    if result.peak[1][AT[UNKNOWN]] > _MUCH * total(result.peak):
        result.notes.append("stackless")
    if not history.has_times:
        result.notes.append("no_times")
    return result


def _of_timeline(rank: RankMemory) -> OverTime | None:
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
    result = OverTime(TENSORS if exact else PROCESS, "timeline", rank.timeline_file, rows, peak)
    result.step, result.steps = times[rows.index(peak)][1], times
    result.notes.append("only_totals" if exact else "whole_process")
    return result


def _unknown(size: int, reserved: int) -> tuple[int, ...]:
    """Nobody knows what it is for."""
    return (*([0] * (len(KINDS) - 2)), size, reserved)
