"""What was planned of a run's memory (plan.json) against what it was, in words. Decides no cause."""

from dataclasses import replace
from typing import Any

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.curve import without_backend
from diagnostics.analysis.memory.job import JobMemory
from diagnostics.contract.formatting import bytes_text
from diagnostics.evidence.values import MOST_BYTES

SCHEMA = "dtk.plan/"
TELLING = 0.1
"""A peak that differs from the plan by more than this fraction is worth a line."""
_LEAST = 0.02
"""Of the peak: categories that differ by less are not named."""
_NAMED = 2  # A convention: parts that fit one line.
_SAME = {categories.TEMPORARIES: "temporaries"}
"""Categories that a plan calls otherwise."""


def planned(job: JobMemory) -> dict[str, Any]:
    """Return the plan's figures, `text` if the peak differs by over `TELLING`, `missing` if it cannot be compared."""
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
        why = "no memory of tensors was recorded, and that of the whole process is no measure of it"
        return {**record, "missing": f"planned {bytes_text(total)}; what it was is not known: {why} (record=full)"}
    rank = max(measured, key=lambda rank: job.peak_bytes(rank) or 0)
    own = rank if rank.curve is None else replace(rank, curve=without_backend(rank.curve))
    peak, was = categories.peak(job, own), job.peak_bytes(rank) or 0
    parts = {}
    if peak is not None:
        was, parts = peak.total_bytes, {_SAME.get(name, name): value for name, value in peak.categories.items()}
    record |= {"rank": rank.rank, "was_bytes": was, "was": parts}
    if abs(was - total) > TELLING * total:
        # Wherever the peak is written with other digits elsewhere in the report, the reason stands here.
        whole = bytes_text(job.peak_bytes(rank) or 0)
        left_out = f" without gloo's own copies (with them {whole})" if whole != bytes_text(was) else ""
        left_out = (f" on rank {rank.rank}" if len(measured) > 1 else "") + left_out
        changes = {name: parts.get(name, 0) - plan.get(name, 0) for name in {**plan, **parts} if parts}
        changes = {name: by for name, by in changes.items() if (by > 0) == (was > total) and abs(by) > _LEAST * was}
        largest = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:_NAMED]
        why = ", ".join(_difference(job, name, plan.get(name, 0), parts.get(name, 0)) for name in largest)
        record["text"] = f"planned {bytes_text(total)}, was {bytes_text(was)}{left_out}{': ' if why else ''}{why}"
    return record


def _difference(job: JobMemory, name: str, planned_bytes: int, was_bytes: int) -> str:
    block = job.size.block_bytes
    if name == categories.GATHERED and block and was_bytes > planned_bytes and round(was_bytes / block) > 1:
        return f"gathered parameters of {round(was_bytes / block)} blocks alive at once ({bytes_text(was_bytes)})"
    if not planned_bytes:
        return f"{bytes_text(was_bytes)} of {name} that were not planned"
    return f"{name} {bytes_text(was_bytes)} instead of {bytes_text(planned_bytes)}"
