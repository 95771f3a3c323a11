"""What the diagnosis says of the profiler's window of a run: the breakdown of a step, and the confirmed causes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import Options, diagnose
from diagnostics.evidence.limits import Limits
from dtk.compare.model import Breakdown

_PARTS = ("wall_ms", "compute_ms", "communication_ms", "overlapped_ms", "exposed_ms", "memory_ms", "idle_ms")


def explain(
    folder: Path, limits: Limits, progress: Callable[[str], None] | None
) -> tuple[Breakdown | None, tuple[str, ...]]:
    """(where a step of the profiled window went, confirmed causes of slowness or memory); empty without traces."""
    if not any((folder / "traces").glob("rank_*")):
        return None, ()
    try:
        report = diagnose(folder, Options(limits=limits, progress=progress))
    except DiagnosticsError:
        return None, ()
    causes = [
        f"{report.title(decided.finding.cause)}: {text_of(decided.finding).summary}"
        for decided in report.findings
        if decided.finding.status == "confirmed" and decided.finding.cause.split(".")[0] in ("overlap", "memory")
    ]
    return breakdown(report.measures), tuple(causes)


def breakdown(measures: Mapping[str, Any]) -> Breakdown | None:
    """Return the mean over ranks of one step, from `report.measures.overlap`."""
    overlap = measures.get("overlap")
    overlap = overlap if isinstance(overlap, dict) else {}
    ranks, steps = overlap.get("ranks"), overlap.get("steps")
    if not isinstance(ranks, dict) or not ranks or not isinstance(steps, int) or steps < 1:
        return None
    records = [record for record in ranks.values() if isinstance(record, dict)]
    counts = [len(r["steps"]) if isinstance(r.get("steps"), list) and r["steps"] else steps for r in records]

    def mean(key: str) -> float:
        return fmean(float(record.get(key) or 0.0) / count for record, count in zip(records, counts, strict=True))

    waiting = all(record.get("waiting_exposed_ms") is not None for record in records)
    groups: dict[str, float] = {}
    for record, count in zip(records, counts, strict=True):
        for name, part in (record.get("groups") or {}).items():
            groups[name] = groups.get(name, 0.0) + float(part.get("exposed_ms") or 0.0) / count / len(records)
    return Breakdown(
        **{key: mean(key) for key in _PARTS},
        waiting_ms=mean("waiting_exposed_ms") if waiting else None,
        exposed_by_group=groups,
    )
