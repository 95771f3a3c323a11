"""The measures of the overlap detector as JSON values for `report.measures`. No verdicts."""

from typing import Any

from diagnostics.analysis.step_profile.attainable import attainable_percent
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import RankProfile

_STEPS_SHOWN = 50
_GROUPS_SHOWN = 50


def measures(view: Overview) -> dict[str, Any]:
    """`report.measures.overlap`"""
    if not view.profiles:
        return {}
    return {
        "unit": "ms",
        "window": "whole file" if view.on_device else "marked steps",
        "step_ms": round(view.step_ms, 3),
        "steps": max(len(one.steps) for one in view.profiles),
        "steps_marked": all(one.marked for one in view.profiles),
        "matched_collectives": view.skew.matched,
        "differing": view.skew.differing[:20],
        "ranks": {one.rank: _rank(view, one) for one in view.profiles},
    }


def _rank(view: Overview, one: RankProfile) -> dict[str, Any]:
    transfer = sum(t for _, t, _ in view.calls(one)) / MS
    compute = one.window.compute / MS
    known = any(floor >= 0 for floor in view.skew.floors.get(one.rank, ()))
    result: dict[str, Any] = {name: round(value, 4) for name, value in one.window.json().items()}
    result |= {
        "transfer_ms": round(transfer, 4) if known else None,
        "waiting_exposed_ms": round(sum(c.exposed - e for c, _, e in view.calls(one)) / MS, 4) if known else None,
        "attainable_overlap_percent": round(attainable_percent(transfer, compute), 2),
        "idle_by_reason_ms": _idle(one),
        "steps": [
            {"step": step.number, **{name: round(value, 4) for name, value in step.times.json().items()}}
            for step in one.steps[:_STEPS_SHOWN]
        ],
        "groups": {name: _part(part) for name, part in list(one.by_group.items())[:_GROUPS_SHOWN]},
        "regions": {name: _part(part) for name, part in one.by_phase.items()},
        "recognised_by": one.recognised,
    }
    if one.hta is not None:
        result["hta"] = {
            "overlap_percent": round(one.hta.overlap, 2),
            "idle_percent": round(one.hta.idle, 2),
            "compute_percent": round(one.hta.compute, 2),
            "non_compute_percent": round(one.hta.non_compute, 2),
            "window": one.hta.window,
        }
    if one.unknown:
        result["unknown_kernels"] = one.unknown
    if one.fused:
        result["fused_kernels"] = one.fused
    return result


def _idle(one: RankProfile) -> dict[str, float]:
    reasons = sorted({reason for step in one.steps for reason in step.gaps})
    return {reason: round(sum(step.gaps.get(reason, 0) for step in one.steps) / MS, 4) for reason in reasons}


def _part(part: Any) -> dict[str, float]:
    return {
        "communication_ms": round(part.communication / MS, 4),
        "overlapped_ms": round(part.overlapped / MS, 4),
        "exposed_ms": round(part.exposed / MS, 4),
    }
