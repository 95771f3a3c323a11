"""Lines for what a trace shows, where Python functions were traced (`with_stack=True`): who gathers, who allocates.

The profiler notes where functions begin, so a line is that of a function's head. One pass over the trace. Decides
nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.analysis.memory.curve import Curve
from diagnostics.analysis.memory.gathers import TRANSPARENT, Gather
from diagnostics.evidence.model import Frame
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.evidence.stacks.dumps import is_users
from diagnostics.evidence.trace.allocations import base_time_ns
from diagnostics.evidence.trace.host_place import stacks_at

MAX_GATHERS = 1000
MAX_KEPT = 200
"""Allocations that outlive their step, the largest ones."""
LEAST_BYTES = 64 << 10
"""Of a gather that is worth a line."""


def place(handle: TraceFile, gathers: list[Gather], threads: Sequence[int], curve: Curve | None, shifted: bool) -> None:
    """Give lines to the user's gathers, to the peak, and to what steps leave behind.

    Args:
        handle: of the trace.
        gathers: all of it; changed in place.
        threads: of each gather.
        curve: of the same trace; changed in place.
        shifted: the times of the gathers are counted from the trace's base.
    """
    base_us = base_time_ns(handle.path, handle.limits) / 1000
    chosen = [n for n, one in enumerate(gathers) if one.kind == "user" and one.full_bytes >= LEAST_BYTES][:MAX_GATHERS]
    moments = [((gathers[n].start_us or 0.0) - (base_us if shifted else 0.0), threads[n]) for n in chosen]
    kept = curve.outlive()[:MAX_KEPT] if curve is not None else []
    moments += [(one.start_us - base_us, one.thread) for one in kept]
    if curve is not None:
        moments.append((curve.peak_us - base_us, curve.peak_thread))
    stacks = stacks_at(handle.path, handle.limits, moments)
    for n, stack in zip(chosen, stacks, strict=False):
        gathers[n] = _called(gathers[n], stack)
    if curve is not None:
        curve.peak_site = _own(stacks[-1])
        for one, stack in zip(kept, stacks[len(chosen) :], strict=False):
            if (site := _own(stack)) is not None:
                curve.kept_sites.setdefault(one.region, Counter())[site] += one.size_bytes


def _own(stack: Sequence[Frame]) -> Frame | None:
    return next((frame for frame in stack if is_users(frame)), None)


def _called(gather: Gather, stack: Sequence[Frame]) -> Gather:
    """With the function that called it; not the user's when other code than torch's own wrappers lies in between."""
    direct = True
    for frame in stack:
        if is_users(frame):
            return replace(gather, kind="user" if direct else "unknown", site=frame, at_head=True)
        direct = direct and (frame.file.endswith(TRANSPARENT) or frame.file.startswith("<"))
    return gather
