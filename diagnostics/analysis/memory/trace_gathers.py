"""What one rank gathers, from a profiler trace: FSDP's annotations tell whose a gather is. Decides nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from diagnostics.analysis.memory.gathers import GATHERS, Gather, Kind, Traffic, UnitUse
from diagnostics.analysis.memory.units import Move
from diagnostics.evidence.trace.memory_marks import Span, TraceCall, TraceMarks

UNIT = "FSDP::all_gather"
_FORWARD, _BACKWARD = "FSDP::pre_forward", "FSDP::pre_backward"
_REDUCES, _ROOT_ENDS = "FSDP::post_backward_reduce", "FSDP::root_post_backward_callback"


def of_trace(marks: TraceMarks, file: str, world_size: int | None) -> Traffic:
    """By FSDP's annotations: a gather inside one is that unit's."""
    traffic = Traffic()
    gathered: list[tuple[float, str, int]] = []
    spans = [span for span in marks.spans if span.name.startswith("FSDP::")]
    for span in spans:
        _count_use(span, traffic.units)
    gathering = [span for span in spans if span.name.startswith(UNIT) and "copy" not in span.name]
    regions = [span for span in marks.spans if not span.name.startswith("FSDP::")]
    for call, unit, region in _placed(marks.calls, gathering, regions):
        if call.op == "reduce_scatter":
            traffic.scattered.add(call.in_bytes)
        if call.op not in GATHERS:
            continue
        ranks = call.ranks or world_size or marks.world_size or 1
        full = call.out_bytes or call.in_bytes * ranks
        name = _unit(unit.name) if unit is not None else ""
        if unit is not None:
            use = traffic.units.setdefault(name, UnitUse())
            use.full_bytes = max(use.full_bytes, full)
            use.gathers += 1
            gathered.append((call.start_us, name, full))
        kind: Kind = "unit" if unit is not None else "library" if call.functional else "user"
        step = next((n for n, s in marks.steps if s.start_us <= call.start_us <= s.end_us), None)
        found = Gather(kind, full, ranks, file, "trace", call.is_list, name, call.op, step, region)
        like = call.in_bytes in marks.gradient_bytes
        traffic.gathers.append(replace(found, start_us=call.start_us, like_parameter=like))
        traffic.threads.append(call.thread)
    traffic.moves = _moves(spans, gathered)
    return traffic


def _moves(spans: Sequence[Span], gathered: Sequence[tuple[float, str, int]]) -> list[Move]:
    """By FSDP's annotations, which ascend by time."""
    found: list[tuple[float, Move]] = []
    forward = [span for span in spans if span.name.startswith(_FORWARD)]
    at, until = 0, 0.0
    for start_us, name, full in gathered:
        while at < len(forward) and forward[at].start_us <= start_us:
            until, at = max(until, forward[at].end_us), at + 1
        found.append((start_us, Move("gather", name, full, "forward" if start_us <= until else "backward")))
    found += [(one.start_us, Move("reduce", _unit(one.name))) for one in spans if one.name.startswith(_REDUCES)]
    found += [(one.start_us, Move("root_end", "")) for one in spans if one.name.startswith(_ROOT_ENDS)]
    return [move for _, move in sorted(found, key=lambda one: one[0])]


def _placed(
    calls: Sequence[TraceCall], units: Sequence[Span], regions: Sequence[Span]
) -> Iterable[tuple[TraceCall, Span | None, str]]:
    """Each call with the unit and the innermost region that is open; both lists ascend by time."""
    at_unit = at_region = 0
    open_units: list[Span] = []
    open_regions: list[Span] = []
    for call in calls:
        now_us = call.start_us
        while at_unit < len(units) and units[at_unit].start_us <= now_us:
            open_units.append(units[at_unit])
            at_unit += 1
        while at_region < len(regions) and regions[at_region].start_us <= now_us:
            open_regions.append(regions[at_region])
            at_region += 1
        open_units = [span for span in open_units if span.end_us >= now_us]
        open_regions = [span for span in open_regions if span.end_us >= now_us]
        unit = next((span for span in reversed(open_units) if span.thread == call.thread), None)
        names = [span.name for span in open_regions if not span.name.startswith("ProfilerStep")]
        yield call, unit, names[-1] if names else ""


def _count_use(span: Span, units: dict[str, UnitUse]) -> None:
    name = span.name
    if name.startswith(_FORWARD):
        units.setdefault(_unit(name), UnitUse()).forwards += 1
    elif name.startswith(_BACKWARD):
        units.setdefault(_unit(name), UnitUse()).backwards += 1


def _unit(name: str) -> str:
    """`blocks.0` of `FSDP::all_gather (blocks.0)`."""
    return name.partition("(")[2].rstrip(")") if "(" in name else ""
