"""`report.measures.memory`: each rank's peak, its location, the curve, the categories at the peak; and the plan."""

from itertools import islice
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.curve import without_backend
from diagnostics.analysis.memory.job import JobMemory, RankMemory, read as read_job
from diagnostics.analysis.memory.over_time import PROCESS, MemoryStack, of_samples, over_time
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.model import MOST_BYTES, Evidence

MAX_RANKS = 1024  # A convention: a number of rows at which report.json stays readable.
MAX_STACKED = 8  # Number of ranks, those with the highest peaks, whose memory is reported by category over time.
_MISSED = 1.02  # Ratio to the curve's own peak above which a peak measured elsewhere is reported with it.


class MeasuredJob(JobMemory):
    """The memory of a job, from which its causes are decided, and its section of the report's measures."""

    def measures(self) -> dict[str, Any]:
        """Return JSON values for `report.measures`; empty if no memory was recorded."""
        return {"memory": measures(self)} if self.ranks or self.nodes else {}


def read(evidence: Evidence) -> MeasuredJob:
    """Read the recorded memory of a job."""
    return read_job(evidence, MeasuredJob)


def measures(job: JobMemory) -> dict[str, Any]:
    """Return JSON values: `ranks` by rank, always with the highest peaks, and `unidentified` ranks by their file."""
    model, states = job.size, job.size.states()
    plan = planned(job)
    resident = {n: max((step.rss_bytes or 0 for step in rank.steps), default=0) for n, rank in job.ranks.items()}
    highest = sorted(job.ranks.values(), key=lambda rank: (-(job.peak_bytes(rank) or resident[rank.rank]), rank.rank))
    stacked = {rank.rank for rank in highest[:MAX_STACKED]}
    shown = sorted(highest[:MAX_RANKS], key=lambda rank: abs(rank.rank))
    records = {rank.rank: _rank(job, rank, rank.rank in stacked) for rank in shown}
    ranks = {str(rank): record for rank, record in records.items() if rank > UNNAMED}
    unidentified = {job.ranks[rank].file: record for rank, record in records.items() if rank <= UNNAMED}
    return {
        "world_size": model.world_size,
        "out_of_memory": job.out_of_memory,
        "parameter_bytes": model.parameter_bytes,
        "parameter_source": model.source or None,
        "model_state_bytes_per_rank": states.total if states is not None else None,
        "kind_of": dict(categories.KIND_OF),
        "ranks": ranks or ({} if unidentified else _sampled(job)),
        **({"unidentified": unidentified} if unidentified else {}),
        **({"plan": plan} if plan else {}),
    }


def _rank(job: JobMemory, rank: RankMemory, stacked: bool) -> dict[str, Any]:
    curve = rank.curve
    record: dict[str, Any] = {}
    if stack := over_time(job, rank):
        record = _curve(stack)
        if stacked:
            record["over_time"] = _over_time(job, rank, stack)
    if curve is not None:
        record["peak_step"], record["peak_region"] = curve.peak_step, curve.peak_region
    peak = categories.peak(job, rank)
    if peak is not None:
        record["categories"], record["computed"] = peak.categories, list(peak.computed)
    size_bytes = job.peak_bytes(rank) or max((size for _, size in record.get("curve", ())), default=None)
    if size_bytes is not None:
        record["peak_bytes"] = size_bytes
    return record


def _curve(stack: MemoryStack) -> dict[str, Any]:
    return {"curve": [[row[0], stack.in_tensors(row)] for row in stack.rows], "curve_of": stack.of}


def _over_time(job: JobMemory, rank: RankMemory, stack: MemoryStack) -> dict[str, Any]:
    """Return the stack as JSON values, with the device's capacity and any higher peak measured elsewhere."""
    elsewhere = job.peak_bytes(rank) or 0
    if stack.of != PROCESS:
        stack.capacity_bytes = _capacity(job, rank)
        stack.peak_elsewhere_bytes = elsewhere if elsewhere > _MISSED * stack.peak.bytes else None
    values: dict[str, Any] = to_builtins(stack)
    return values


def _capacity(job: JobMemory, rank: RankMemory) -> int | None:
    """Return the capacity of the rank's device by a message, or by telemetry if all devices are equal; else None."""
    for record in job.ran_out:
        if record.rank == rank.rank and record.device == "cuda" and (record.limit_bytes or record.total_bytes):
            return record.limit_bytes or record.total_bytes
    on_device = rank.snapshot is not None or any(step.allocated_bytes is not None for step in rank.steps[:1])
    if not on_device and (rank.curve is None or rank.curve.device_type == 0):
        return None
    totals = {device.total_bytes for node in job.nodes.values() for device in node.devices.values()}
    return totals.pop() if len(totals) == 1 else None


def _sampled(job: JobMemory) -> dict[str, Any]:
    """Return the resident memory of processes in telemetry, if ranks recorded nothing. Not a peak of tensors."""
    samples = {rank: of_samples(rss, "") for node in job.nodes.values() for rank, rss in node.rank_rss.items()}
    stacks = dict(islice(((rank, stack) for rank, stack in samples.items() if stack is not None), MAX_RANKS))
    records = {str(rank): _curve(stacks[rank]) for rank in sorted(stacks)}
    for rank in sorted(stacks, key=lambda rank: (-stacks[rank].peak.bytes, rank))[:MAX_STACKED]:
        records[str(rank)]["over_time"] = _over_time(job, RankMemory(-1), stacks[rank])
    return records


SCHEMA = "dtk.plan/"
TELLING = 0.1  # Relative difference between the peak and the plan above which it is reported.
_LEAST = 0.02  # Fraction of the peak below which a category's difference is not named.
_NAMED = 2  # A convention: the number of categories that fit on one line.
_SAME = {categories.TEMPORARIES: "temporaries"}  # Categories that have another name in a plan.


def planned(job: JobMemory) -> dict[str, Any]:
    """Return the plan's figures, `differs` if the peak differs by over `TELLING`, `missing` if nothing measures it."""
    run = job.evidence.run
    stored = run.plan if run is not None else {}
    memory = stored.get("memory") if str(stored.get("schema", "")).startswith(SCHEMA) else None
    at_peak = memory.get("at_peak_bytes") if isinstance(memory, dict) else None
    at_peak = at_peak if isinstance(at_peak, dict) else {}
    plan = {str(name): size for name, size in at_peak.items() if type(size) is int and 0 < size < MOST_BYTES}
    if not plan:
        return {}
    total = sum(plan.values())
    record: dict[str, Any] = {"planned_bytes": total, "planned": plan}
    measured = [
        rank
        for rank in job.ranks.values()
        if job.before_window(rank) is not None
        or rank.snapshot is not None
        or any(step.peak_allocated_bytes for step in rank.steps)
    ]
    if not measured:
        return {**record, "missing": "tensors"}
    rank = max(measured, key=lambda rank: job.peak_bytes(rank) or 0)
    own = rank if rank.curve is None else replace(rank, curve=without_backend(rank.curve))
    peak, was = categories.peak(job, own), job.peak_bytes(rank) or 0
    parts = {}
    if peak is not None:
        was, parts = peak.total_bytes, {_SAME.get(name, name): value for name, value in peak.categories.items()}
    record |= {"rank": rank.rank, "was_bytes": was, "was": parts}
    if abs(was - total) > TELLING * total:
        changes = {name: parts.get(name, 0) - plan.get(name, 0) for name in {**plan, **parts} if parts}
        changes = {name: by for name, by in changes.items() if (by > 0) == (was > total) and abs(by) > _LEAST * was}
        record["differs"] = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:_NAMED]
        record["with_copies_bytes"], record["ranks"] = job.peak_bytes(rank) or 0, len(measured)
        gathered, block = parts.get(categories.GATHERED, 0), job.size.block_bytes
        record["gathered_blocks"] = round(gathered / block) if block else None
    return record
