"""One rank's gathers in a profiler trace: their units, their allocations, and their source lines.

Traces give no addresses of calls, so calls and allocations are matched by size and order.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from diagnostics.analysis.memory.curve import Allocation, Curve, OpenSpans
from diagnostics.analysis.memory.gathers import GATHERS, TRANSPARENT, Gather, Kind, Move, Phase, Traffic, UnitUse
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.evidence.stacks.dumps import is_users
from diagnostics.evidence.trace.memory_marks import Span, TraceCall, TraceMarks, stacks_at

_UNIT, _FORWARD, _BACKWARD = "FSDP::all_gather", "FSDP::pre_forward", "FSDP::pre_backward"
_REDUCES, _ROOT_ENDS = "FSDP::post_backward_reduce", "FSDP::root_post_backward_callback"
ROUND_BYTES = 512
"""CUDA's allocator rounds sizes up to a multiple of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
_LOOK_AHEAD = 6  # Number of allocations made by a functional collective itself: its output and the backend's copies.
_LOOK_BACK = 400  # Number of allocations before a call that are searched for its output.
MAX_GATHERS = 1000  # Each gather is looked up among the operations of the trace.
MAX_KEPT = 200
"""Maximum number of allocations outliving their step, largest first, for which source lines are looked up."""
LEAST_BYTES = 64 << 10  # Minimum size of a gather for which a source line is looked up.


def traffic(marks: TraceMarks, file: str, world_size: int | None) -> Traffic:
    """Return the gathers of a trace; one inside an FSDP annotation belongs to that unit."""
    result = Traffic()
    moves: list[tuple[float, Move]] = []
    units = [span for span in marks.spans if span.name.startswith("FSDP::")]
    forward = [span for span in units if span.name.startswith(_FORWARD)]
    for span in units:
        if span.name.startswith(_FORWARD):
            result.units.setdefault(_unit(span), UnitUse()).forwards += 1
        elif span.name.startswith(_BACKWARD):
            result.units.setdefault(_unit(span), UnitUse()).backwards += 1
        elif span.name.startswith(_REDUCES):
            moves.append((span.start_us, Move("reduce", _unit(span))))
        elif span.name.startswith(_ROOT_ENDS):
            moves.append((span.start_us, Move("root_end", "")))
    in_unit = OpenSpans([span for span in units if span.name.startswith(_UNIT) and "copy" not in span.name])
    in_region = OpenSpans([span for span in marks.spans if not span.name.startswith(("FSDP::", "ProfilerStep"))])
    in_forward, steps = OpenSpans(forward), marks.steps
    for call in marks.calls:
        if call.op == "reduce_scatter":
            result.scattered.add(call.in_bytes)
        unit = next((span for span in reversed(in_unit.at(call.start_us)) if span.thread == call.thread), None)
        regions = in_region.at(call.start_us)
        if call.op not in GATHERS:
            continue
        ranks = call.ranks or world_size or marks.world_size or 1
        full = call.out_bytes or call.in_bytes * ranks
        kind: Kind = "unit" if unit is not None else "library" if call.functional else "user"
        if unit is not None:
            use = result.units.setdefault(_unit(unit), UnitUse())
            use.full_bytes, use.gathers = max(use.full_bytes, full), use.gathers + 1
            phase: Phase = "forward" if in_forward.at(call.start_us) else "backward"
            moves.append((call.start_us, Move("gather", _unit(unit), full, phase)))
        gather = Gather(kind, full, ranks, file, "trace", call.is_list, _unit(unit) if unit else "", call.op)
        step = next((n for n, s in steps if s.start_us <= call.start_us <= s.end_us), None)
        region = regions[-1].name if regions else ""
        like = call.in_bytes in marks.gradient_bytes
        gather = replace(gather, step=step, region=region, start_us=call.start_us, like_parameter=like)
        result.gathers.append(gather)
        result.threads.append(call.thread)
    result.moves = [move for _, move in sorted(moves, key=lambda timed: timed[0])]
    return result


def _unit(span: Span) -> str:
    """Return the unit of an annotation: `blocks.0` for `FSDP::all_gather (blocks.0)`."""
    return span.name.partition("(")[2].rstrip(")")


def mark_outputs(curve: Curve, gathers: Iterable[Gather]) -> None:
    """Mark the outputs of gathers called by user code: allocations of the same size made shortly before the call."""
    starts = [block.start_us for block in curve.allocations]
    for call in gathers:
        if call.kind not in ("user", "library") or call.start_us is None:
            continue
        ends = bisect_right(starts, call.start_us)
        before = curve.allocations[max(0, ends - _LOOK_BACK) : ends]
        alive = [block for block in before if block.end_us is None or block.end_us > call.start_us]
        made_by_call = curve.allocations[ends : ends + _LOOK_AHEAD] if call.kind == "library" else []
        longest = sorted(made_by_call, key=lambda block: -(block.end_us or inf))  # the backend's copy comes first
        for block in _output([*longest, *reversed(alive)], call):
            block.gathered = True


def mark_lent(curve: Curve, calls: Iterable[TraceCall]) -> None:
    """Mark the buffers that collectives read or write: the youngest matching allocations alive at the call."""
    starts = [block.start_us for block in curve.allocations]
    for call in calls:
        ends = bisect_right(starts, call.start_us)
        for message_bytes in {call.in_bytes, call.out_bytes or 0}:
            for block in reversed(curve.allocations[max(0, ends - _LOOK_BACK) : ends]):
                alive = block.end_us is None or block.end_us > call.start_us
                if alive and not block.gathered and not block.lent and _fits(block.size_bytes, message_bytes):
                    block.lent = True
                    block.sent = call.op == "reduce_scatter" and message_bytes == call.in_bytes
                    break


def _output(candidates: list[Allocation], call: Gather) -> list[Allocation]:
    """Return one block of the full size, or one block per rank. Candidates are in order of decreasing likelihood."""
    whole = [op for op in candidates if _fits(op.size_bytes, call.full_bytes)]
    if whole and not call.is_list:
        return whole[:1]
    part = call.full_bytes // max(call.ranks, 1)
    for factor in (1.0, 0.5, 2.0, 0.25):  # the dtype of a list of tensors is not recorded
        parts = [op for op in candidates if _fits(op.size_bytes, int(part * factor))]
        if len(parts) >= call.ranks > 1:
            return parts[: call.ranks]
    return whole[:1]


def _fits(size_bytes: int, wanted_bytes: int) -> bool:
    return 0 < wanted_bytes <= size_bytes < wanted_bytes + ROUND_BYTES


def add_sites(handle: TraceFile, traffic: Traffic, curve: Curve | None) -> None:
    """Add source lines to the user's gathers, the peak, and blocks that outlive their step, in one pass."""
    gathers = traffic.gathers
    large = [n for n, call in enumerate(gathers) if call.kind == "user" and call.full_bytes >= LEAST_BYTES]
    chosen = large[:MAX_GATHERS]
    moments = [(gathers[n].start_us or 0.0, traffic.threads[n]) for n in chosen]
    staying = curve.outlive()[:MAX_KEPT] if curve is not None else []
    moments += [(block.start_us, block.thread) for block in staying]
    if curve is not None:
        moments.append((curve.peak_us, curve.peak_thread))
    stacks = stacks_at(handle.path, handle.limits, moments)
    for n, stack in zip(chosen, stacks, strict=False):
        if (site := next(filter(is_users, stack), None)) is not None:
            between = stack[: list(stack).index(site)]
            # Not a user's gather if code other than torch's own wrappers lies in between.
            direct = all(frame.file.endswith(TRANSPARENT) or frame.file.startswith("<") for frame in between)
            gathers[n] = replace(gathers[n], kind="user" if direct else "unknown", site=site, at_head=True)
    if curve is not None:
        curve.peak_site = next(filter(is_users, stacks[-1]), None)
        for block, stack in zip(staying, stacks[len(chosen) :], strict=False):
            if (site := next(filter(is_users, stack), None)) is not None:
                curve.kept_sites.setdefault(block.region, Counter())[site] += block.size_bytes
