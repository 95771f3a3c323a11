"""Which allocations are the buffers of collectives: outputs of gathers, and what a backend holds for a while.

Traces give sizes and times of both but no addresses of calls, so they are matched by size and order. Decides nothing.
"""

from collections.abc import Iterable

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.gathers import Gather
from diagnostics.evidence.trace.memory_marks import TraceCall

_ROUND = 512
"""CUDA's allocator rounds up to this."""
_LOOK_AHEAD = 6
"""Allocations that a functional collective makes itself: its output and the backend's copies."""
_LOOK_BACK = 400
"""Allocations in front of a call among which its output is looked for."""


def mark_outputs(curve: Curve, gathers: Iterable[Gather]) -> None:
    """Mark the allocations that gathers of the user's code write into: same size, made shortly before the call."""
    calls = [one for one in gathers if one.kind in ("user", "library") and one.start_us is not None]
    ends = 0
    for call in calls:
        start_us = call.start_us or 0.0
        while ends < len(curve.allocations) and curve.allocations[ends].start_us <= start_us:
            ends += 1
        before = curve.allocations[max(0, ends - _LOOK_BACK) : ends]
        alive = [one for one in before if one.end_us is None or one.end_us > start_us]
        made_by_call = curve.allocations[ends : ends + _LOOK_AHEAD] if call.kind == "library" else []
        longest = sorted(made_by_call, key=lambda one: -(one.end_us or float("inf")))  # the backend's copy goes first
        for one in _output([*longest, *reversed(alive)], call):
            one.gathered = True


def mark_lent(curve: Curve, calls: Iterable[TraceCall]) -> None:
    """Mark the buffers that collectives read or write: of their sizes, the youngest ones alive at the call."""
    ends = 0
    for call in calls:
        while ends < len(curve.allocations) and curve.allocations[ends].start_us <= call.start_us:
            ends += 1
        for wanted in {call.in_bytes, call.out_bytes or 0}:
            for one in reversed(curve.allocations[max(0, ends - _LOOK_BACK) : ends]):
                alive = one.end_us is None or one.end_us > call.start_us
                if alive and not one.gathered and not one.lent and _fits(one.size_bytes, wanted):
                    one.lent = True
                    one.sent = call.op == "reduce_scatter" and wanted == call.in_bytes
                    break


def _output(candidates: list[Allocation], call: Gather) -> list[Allocation]:
    """One block of the whole size, or as many of a part's size as there are ranks; the likeliest come first."""
    whole = [one for one in candidates if _fits(one.size_bytes, call.full_bytes)]
    if whole and not call.is_list:
        return whole[:1]
    part = call.full_bytes // max(call.ranks, 1)
    for factor in (1.0, 0.5, 2.0, 0.25):  # a list of tensors does not say its type
        parts = [one for one in candidates if _fits(one.size_bytes, int(part * factor))]
        if len(parts) >= call.ranks > 1:
            return parts[: call.ranks]
    return whole[:1]


def _fits(size_bytes: int, wanted_bytes: int) -> bool:
    return wanted_bytes > 0 and wanted_bytes <= size_bytes < wanted_bytes + _ROUND
