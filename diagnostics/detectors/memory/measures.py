"""`report.measures.memory`: per rank the peak, where it stood, the curve, what the peak consists of; and the plan."""

from typing import Any

from diagnostics.detectors.memory import categories
from diagnostics.detectors.memory.planned import planned
from diagnostics.detectors.memory.situation import RankMemory, Situation
from diagnostics.evidence.memory_timeline import thinned

MAX_POINTS = 500
MAX_RANKS = 1024


def measures(situation: Situation) -> dict[str, Any]:
    """JSON values; `ranks` by rank."""
    facts, states = situation.facts, situation.states()
    plan = planned(situation)
    return {
        "world_size": facts.world_size,
        "parameter_bytes": facts.parameter_bytes,
        "parameter_source": facts.source or None,
        "model_state_bytes_per_rank": states.total if states is not None else None,
        "ranks": {str(rank.rank): _rank(situation, rank) for rank in situation.all()[:MAX_RANKS]},
        **({"plan": plan} if plan else {}),
    }


def _rank(situation: Situation, rank: RankMemory) -> dict[str, Any]:
    curve, before = rank.curve, situation.before_window(rank)
    record: dict[str, Any] = {}
    if curve is not None:
        shift = 0 if curve.baseline_bytes is not None else before or 0
        record["curve"] = [[time_s, size + shift] for time_s, size in curve.points]
        record["curve_of"] = "tensors" if before is not None else "tensors allocated in the profiled window"
        record["peak_step"], record["peak_region"] = curve.peak_step, curve.peak_region
    else:
        record.update(_recorded_curve(rank))
    peak = categories.peak(situation, rank)
    if peak is not None:
        record["categories"] = peak.categories
        record["computed"] = list(peak.computed)
    size_bytes = situation.peak_bytes(rank) or max((size for _, size in record.get("curve", ())), default=None)
    if size_bytes is not None:
        record["peak_bytes"] = size_bytes
    return record


def _recorded_curve(rank: RankMemory) -> dict[str, Any]:
    """Of the timeline or the snapshot, where there is no trace."""
    steps = rank.timeline.steps if rank.timeline is not None else []
    if steps:
        exact = all(one.allocated_bytes is not None for one in steps)
        values = [(one.time_s, (one.allocated_bytes if exact else one.rss_bytes) or 0) for one in steps]
        curve = [[round(t - steps[0].time_s, 3), size] for t, size in thinned(values, MAX_POINTS)]
        return {"curve": curve, "curve_of": "tensors" if exact else "the process (resident set)"}
    devices = list(rank.snapshot.devices.values()) if rank.snapshot is not None else []
    if devices:
        largest = max(devices, key=lambda one: one.peak_bytes)
        return {"curve": [list(point) for point in largest.curve], "curve_of": "tensors"}
    return {}
