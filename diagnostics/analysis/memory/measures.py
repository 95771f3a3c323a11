"""`report.measures.memory`: per rank the peak, where it stood, the curve, what the peak consists of; and the plan."""

from typing import Any

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.analysis.memory.over_time import PROCESS, WINDOW, OverTime, of_samples, over_time
from diagnostics.analysis.memory.plan import planned
from diagnostics.evidence.memory.levels import AT, KINDS, RESERVED, Row, total
from diagnostics.evidence.readers.timeline import thinned

MAX_POINTS = 500
MAX_RANKS = 1024
MAX_STACKED = 8
"""Ranks whose memory is told by category over time: those with the highest peaks."""
_MISSED = 1.02
"""A peak elsewhere that is so much higher than the curve's own is told beside it."""


def measures(situation: Situation) -> dict[str, Any]:
    """JSON values; `ranks` by rank, the highest peaks are among them however many there are."""
    facts, states = situation.facts, situation.states()
    plan = planned(situation)
    highest = sorted(situation.all(), key=lambda one: (-(situation.peak_bytes(one) or _resident(one)), one.rank))
    stacked = {one.rank for one in highest[:MAX_STACKED]}
    shown = sorted(highest[:MAX_RANKS], key=lambda one: one.rank)
    ranks = {str(one.rank): _rank(situation, one, one.rank in stacked) for one in shown}
    return {
        "world_size": facts.world_size,
        "parameter_bytes": facts.parameter_bytes,
        "parameter_source": facts.source or None,
        "model_state_bytes_per_rank": states.total if states is not None else None,
        "kind_of": dict(categories.KIND_OF),
        "ranks": ranks or _sampled(situation),
        **({"plan": plan} if plan else {}),
    }


def _rank(situation: Situation, rank: RankMemory, stacked: bool) -> dict[str, Any]:
    curve, before = rank.curve, situation.before_window(rank)
    record: dict[str, Any] = {}
    found = over_time(situation, rank) if stacked else None
    if found is not None:
        record["curve"] = [[_rounded(row[0]), total(row)] for row in found.rows]
        record["curve_of"] = found.of
        record["over_time"] = _stack(situation, rank, found)
    elif curve is not None:
        shift = 0 if curve.baseline_bytes is not None else before or 0
        record["curve"] = [[time_s, size + shift] for time_s, size in curve.points]
        record["curve_of"] = "tensors" if before is not None else WINDOW
    else:
        record.update(_recorded_curve(rank))
    if curve is not None:
        record["peak_step"], record["peak_region"] = curve.peak_step, curve.peak_region
    peak = categories.peak(situation, rank)
    if peak is not None:
        record["categories"] = peak.categories
        record["computed"] = list(peak.computed)
    size_bytes = situation.peak_bytes(rank) or max((size for _, size in record.get("curve", ())), default=None)
    if size_bytes is not None:
        record["peak_bytes"] = size_bytes
    return record


def _stack(situation: Situation, rank: RankMemory, found: OverTime) -> dict[str, Any]:
    """Only the kinds that are there, in their order."""
    used = [name for name in KINDS if any(row[1][AT[name]] for row in found.rows)]
    peak_bytes = total(found.peak)
    elsewhere = situation.peak_bytes(rank) or 0
    where = found.site
    return {
        "of": found.of,
        "from": found.kind,
        "file": found.file,
        "unit": "s" if found.has_times else "event",
        "kinds": used,
        "rows": [_row(row, used) for row in found.rows],
        "peak": {
            "time": _rounded(found.peak[0]),
            "bytes": peak_bytes,
            "kinds": {name: found.peak[1][AT[name]] for name in used if name != RESERVED},
            "step": found.step,
            "region": found.region or None,
            "where": {"file": where.file, "line": where.line, "function": where.function} if where else None,
        },
        "steps": [[_rounded(time_s), step] for time_s, step in found.steps],
        "computed": list(found.computed),
        "capacity_bytes": None if found.of == PROCESS else _capacity(situation, rank),
        "failed": None if found.failed is None else {"time": _rounded(found.failed[0]), "bytes": found.failed[1]},
        "peak_elsewhere_bytes": elsewhere if found.of != PROCESS and elsewhere > _MISSED * peak_bytes else None,
        "notes": found.notes,
    }


def _row(row: Row, used: list[str]) -> list[float]:
    return [_rounded(row[0]), *(row[1][AT[name]] for name in used)]


def _rounded(time_s: float) -> float:
    return round(time_s, 6)


def _capacity(situation: Situation, rank: RankMemory) -> int | None:
    """Of the rank's device, where a message or telemetry tells it and no device differs."""
    own = [one for one in situation.ran_out if one.rank == rank.rank and one.device == "cuda"]
    told = [one.limit_bytes or one.total_bytes for one in own if one.limit_bytes or one.total_bytes]
    if told:
        return told[0]
    steps = rank.timeline.steps if rank.timeline is not None else []
    on_device = rank.snapshot is not None or any(one.allocated_bytes is not None for one in steps[:1])
    if not on_device and (rank.curve is None or rank.curve.device_type == 0):
        return None
    totals = {device.total_bytes for node in situation.nodes.values() for device in node.devices.values()}
    return totals.pop() if len(totals) == 1 else None


def _resident(rank: RankMemory) -> int:
    steps = rank.timeline.steps if rank.timeline is not None else []
    return max((one.rss_bytes or 0 for one in steps), default=0)


def _sampled(situation: Situation) -> dict[str, Any]:
    """Where no rank left anything: what telemetry saw of the processes, which is no peak of tensors."""
    found: dict[int, OverTime] = {}
    for node in situation.nodes.values():
        for rank, samples in node.rank_rss.items():
            one = of_samples(samples, "")
            if one is not None and len(found) < MAX_RANKS:
                found[rank] = one
    worst = sorted(found, key=lambda rank: (-total(found[rank].peak), rank))[:MAX_STACKED]
    nobody = RankMemory(-1)
    return {
        str(rank): {
            "curve": [[_rounded(row[0]), total(row)] for row in found[rank].rows],
            "curve_of": PROCESS,
            **({"over_time": _stack(situation, nobody, found[rank])} if rank in worst else {}),
        }
        for rank in sorted(found)
    }


def _recorded_curve(rank: RankMemory) -> dict[str, Any]:
    """Of the timeline or the snapshot, where there is no trace."""
    steps = rank.timeline.steps if rank.timeline is not None else []
    if steps:
        exact = all(one.allocated_bytes is not None for one in steps)
        values = [(one.time_s, (one.allocated_bytes if exact else one.rss_bytes) or 0) for one in steps]
        curve = [[round(t - steps[0].time_s, 3), size] for t, size in thinned(values, MAX_POINTS)]
        return {"curve": curve, "curve_of": "tensors" if exact else PROCESS}
    devices = list(rank.snapshot.devices.values()) if rank.snapshot is not None else []
    if devices:
        largest = max(devices, key=lambda one: one.peak_bytes)
        return {"curve": [list(point) for point in largest.curve], "curve_of": "tensors"}
    return {}
