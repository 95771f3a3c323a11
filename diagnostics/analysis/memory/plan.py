"""What was planned of a run's memory (plan.json) against what it was, in words. Decides no cause.

Tensors are compared with tensors only: the resident set of a process on CPU also holds code, caches and buffers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.curve import without_backend
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.contract.formatting import bytes_text

SCHEMA = "dtk.plan/"
TELLING = 0.1
"""A peak that differs from the plan by more than this fraction is worth a line."""
_LEAST = 0.02
"""Of the peak: categories that differ by less are not named."""
_NAMED = 2
_SAME = {categories.TEMPORARIES: "temporaries"}
"""Categories that a plan calls otherwise."""


def planned(job: JobMemory) -> dict[str, Any]:
    """For `report.measures.memory.plan`; empty without a plan.

    `text` says how the peak differs by more than `TELLING`, `missing` why it cannot be compared.
    """
    found = _plan(job)
    if not found:
        return {}
    total = sum(found.values())
    record: dict[str, Any] = {"planned_bytes": total, "planned": found}
    rank = _fullest(job)
    if rank is None:
        why = "no memory of tensors was recorded, and that of the whole process is no measure of it"
        return {**record, "missing": f"planned {bytes_text(total)}; what it was is not known: {why} (record=full)"}
    was, peak = _was(job, rank)
    record |= {"rank": rank.rank, "was_bytes": peak, "was": was}
    if abs(peak - total) > TELLING * total:
        left_out = " without gloo's own copies" if (job.peak_bytes(rank) or 0) > (1 + _LEAST) * peak else ""
        why = _why(job, found, was, peak)
        record["text"] = f"planned {bytes_text(total)}, was {bytes_text(peak)}{left_out}{why}"
    return record


def _plan(job: JobMemory) -> dict[str, int]:
    """Categories at the planned peak, bytes; empty when there is no plan or it is none."""
    run = job.evidence.run
    plan = run.plan if run is not None else {}
    memory = plan.get("memory") if str(plan.get("schema", "")).startswith(SCHEMA) else None
    parts = memory.get("at_peak_bytes") if isinstance(memory, dict) else None
    if not isinstance(parts, dict):
        return {}
    return {
        str(name): value
        for name, value in parts.items()
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 60
    }


def _fullest(job: JobMemory) -> RankMemory | None:
    """The rank with the highest peak of tensors."""
    known = [
        rank
        for rank in job.ranks.values()
        if job.before_window(rank) is not None
        or rank.snapshot is not None
        or any(step.peak_allocated_bytes for step in rank.steps)
    ]
    return max(known, key=lambda rank: job.peak_bytes(rank) or 0, default=None)


def _was(job: JobMemory, rank: RankMemory) -> tuple[dict[str, int], int]:
    """Categories in a plan's words, and the peak; no categories where allocations were not recorded."""
    own = rank if rank.curve is None else replace(rank, curve=without_backend(rank.curve))
    peak = categories.peak(job, own)
    if peak is None:
        return {}, job.peak_bytes(rank) or 0
    return {_SAME.get(name, name): value for name, value in peak.categories.items()}, peak.total_bytes


def _why(job: JobMemory, plan: Mapping[str, int], was: Mapping[str, int], peak: int) -> str:
    """The categories that the difference is made of, the largest first."""
    if not was:
        return ""
    more = peak > sum(plan.values())
    changes = {name: was.get(name, 0) - plan.get(name, 0) for name in {**plan, **was}}
    changes = {name: by for name, by in changes.items() if (by > 0) == more and abs(by) > _LEAST * peak}
    named = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:_NAMED]
    parts = [_difference(job, name, plan.get(name, 0), was.get(name, 0)) for name in named]
    return f": {', '.join(parts)}" if parts else ""


def _difference(job: JobMemory, name: str, planned_bytes: int, was_bytes: int) -> str:
    block = job.size.block_bytes
    if name == categories.GATHERED and block and was_bytes > planned_bytes and round(was_bytes / block) > 1:
        return f"gathered parameters of {round(was_bytes / block)} blocks alive at once ({bytes_text(was_bytes)})"
    if not planned_bytes:
        return f"{bytes_text(was_bytes)} of {name} that were not planned"
    return f"{name} {bytes_text(was_bytes)} instead of {bytes_text(planned_bytes)}"
