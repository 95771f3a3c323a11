"""What one rank gathers and reduces, from traces, flight dumps and rings: sizes, who called, how often.

A gather is a unit's (FSDP's own, by its annotation or frames), the user's (a call of torch.distributed in
the user's code) or a library's. Decides nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from diagnostics.evidence.calls import Call, GroupKey, is_library, settle
from diagnostics.evidence.memory_trace import Span, TraceCall, TraceMarks
from diagnostics.evidence.model import Frame
from diagnostics.evidence.ring_format import RingDump, RingRecord

Kind = Literal["unit", "user", "object", "state_dict", "library", "unknown"]
UNIT = "FSDP::all_gather"
_FORWARD, _BACKWARD = "FSDP::pre_forward", "FSDP::pre_backward"
_STATE_DICT = ("state_dict", "full_tensor", "summon_full_params")
_OBJECT_CALLS = frozenset({"all_gather_object", "gather_object"})
_TRANSPARENT = (
    "distributed_c10d.py", "c10d_logger.py", "typing_extensions.py", "contextlib.py", "functools.py",
    "record/collectives.py",
)  # fmt: skip
"""Files between a user's call of torch.distributed and the collective."""
_GATHERS = frozenset({"all_gather", "gather"})
LEAST_UNIT = 1024
"""Elements: smaller gathers and reductions are of the same size by chance."""
_ONCE = 1.1
"""Gathered over reduced bytes: 1 = once a step, almost 2 = again in backward; a dump may begin in mid-step."""
_REDUCTIONS = frozenset({"reduce_scatter", "all_reduce"})
_ITEM_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gather:
    """One call that brings bytes of other ranks to this one."""

    kind: Kind
    full_bytes: int
    """Of the output: all ranks' parts."""
    ranks: int
    """Size of the group."""
    file: str
    """Evidence it is from."""
    evidence: str
    """`trace`, `flight` or `ring`."""
    is_list: bool = False
    unit: str = ""
    """Name of the FSDP unit; empty = the root."""
    op: str = "all_gather"
    step: int | None = None
    region: str = ""
    site: Frame | None = None
    start_us: float | None = None
    guessed: bool = False
    """A unit's only by its size: sequence parallelism gathers and reduces equal sizes as well."""


@dataclass(slots=True)
class UnitUse:
    """How often one FSDP unit was used within the window."""

    full_bytes: int = 0
    gathers: int = 0
    forwards: int = 0
    backwards: int = 0


@dataclass(slots=True)
class Traffic:
    """Gathers of one rank, from one kind of evidence."""

    gathers: list[Gather] = field(default_factory=list)
    units: dict[str, UnitUse] = field(default_factory=dict)
    """Traces only: name -> use."""
    scattered: set[int] = field(default_factory=set)
    """Bytes of the full inputs of reduce_scatters."""
    order: list[tuple[bool, int, int]] = field(default_factory=list)
    """Flight dumps and rings: (is a gather, elements of the full tensor, bytes of it) of units, in order."""

    @property
    def unit_bytes(self) -> int:
        """All units together: the whole model as it is gathered; 0 when that is not known."""
        if self.units:
            return sum(unit.full_bytes for unit in self.units.values())
        sizes = {elements: size for gather, elements, size in self.order if gather}
        counts = Counter(elements for gather, elements, _ in self.order if not gather)
        steps = min(counts.values(), default=0)  # the root unit is reduced once a step
        return sum(sizes.get(elements, 0) * round(count / steps) for elements, count in counts.items()) if steps else 0

    def kept_bytes(self) -> int:
        """Bytes of units that are gathered no more often than reduced, several in a row; 0 = freed or not known."""
        counts = Counter((gather, elements) for gather, elements, _ in self.order)
        sizes = {elements: size for gather, elements, size in self.order if gather}
        in_a_row = any(a[0] and b[0] for a, b in pairwise(self.order))
        gathered = sum(count * sizes[elements] for (gather, elements), count in counts.items() if gather)
        reduced = sum(count * sizes.get(elements, 0) for (gather, elements), count in counts.items() if not gather)
        return self.unit_bytes if in_a_row and reduced and gathered <= _ONCE * reduced else 0


def of_trace(marks: TraceMarks, file: str, world_size: int | None) -> Traffic:
    """By FSDP's annotations: a gather inside one is that unit's."""
    traffic = Traffic()
    spans = [span for span in marks.spans if span.name.startswith("FSDP::")]
    for span in spans:
        _count_use(span, traffic.units)
    gathering = [span for span in spans if span.name.startswith(UNIT) and "copy" not in span.name]
    regions = [span for span in marks.spans if not span.name.startswith("FSDP::")]
    for call, unit, region in _placed(marks.calls, gathering, regions):
        if call.op == "reduce_scatter":
            traffic.scattered.add(call.in_bytes)
        if call.op not in _GATHERS:
            continue
        ranks = call.ranks or world_size or marks.world_size or 1
        full = call.out_bytes or call.in_bytes * ranks
        name = _unit(unit.name) if unit is not None else ""
        if unit is not None:
            use = traffic.units.setdefault(name, UnitUse())
            use.full_bytes = max(use.full_bytes, full)
            use.gathers += 1
        kind: Kind = "unit" if unit is not None else "library" if call.functional else "user"
        step = next((n for n, s in marks.steps if s.start_us <= call.start_us <= s.end_us), None)
        traffic.gathers.append(
            Gather(kind, full, ranks, file, "trace", call.is_list, name, call.op, step, region, None, call.start_us)
        )
    return traffic


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


def of_calls(
    calls: Sequence[Call], members: Mapping[GroupKey, tuple[int, ...]], file: str, world_size: int | None
) -> Traffic:
    """By the frames of a flight dump; without frames a gather whose size is reduced as well is a unit's."""
    traffic = Traffic()
    reduced = {sum(one.wire.amounts) for one in calls if one.wire.op in _REDUCTIONS}
    likely = _group_size(calls, reduced) or world_size or 1
    for call in calls:
        wire = call.wire
        item = _ITEM_BYTES.get(wire.dtypes[0], 0) if wire.dtypes else 0
        elements = sum(wire.amounts)
        ranks = len(members.get(call.key, ())) or likely
        if wire.op in _REDUCTIONS:
            traffic.order.append((False, elements, 0))
        if wire.op == "reduce_scatter":
            traffic.scattered.add(elements * item)
        if wire.op not in _GATHERS or not elements * item:
            continue
        kind, is_list = _caller(call)
        guessed = kind == "unknown" and elements * ranks in reduced and elements >= LEAST_UNIT
        kind = "unit" if guessed else kind
        settled = settle(call)
        kind = "object" if settled.user_op in _OBJECT_CALLS else kind
        full, op = elements * item * ranks, settled.user_op or wire.op
        if kind == "unit":
            traffic.order.append((True, elements * ranks, full))
        found = Gather(kind, full, ranks, file, "flight", is_list, op=op, step=call.step, region=call.region)
        traffic.gathers.append(replace(found, site=settled.site, guessed=guessed))
    _only_units(traffic)
    return traffic


def _group_size(calls: Sequence[Call], reduced: set[int]) -> int | None:
    """Of a sharded group that the dump does not describe: each unit's whole size is reduced, its part gathered."""
    parts = Counter(sum(one.wire.amounts) for one in calls if one.wire.op in _GATHERS)
    units = {part: count for part, count in parts.items() if part >= LEAST_UNIT}
    votes: Counter[int] = Counter()
    for part, count in units.items():
        votes.update({whole // part: count for whole in reduced if whole % part == 0 and whole > part})
    best, count = max(votes.items(), key=lambda one: (one[1], -one[0]), default=(0, 0))
    return best if 2 * count > sum(units.values()) else None


def _only_units(traffic: Traffic) -> None:
    """Reductions count as a unit's where one of that size is gathered: gloo shows reduce_scatter as all_reduce."""
    sizes = {elements for gather, elements, _ in traffic.order if gather}
    traffic.order = [one for one in traffic.order if one[1] in sizes]


def _caller(call: Call) -> tuple[Kind, bool]:
    """Who called, by the frames between torch's own and the user's; and whether into a list of tensors."""
    frames = call.frames if isinstance(call.frames, list | tuple) else ()
    is_list, direct = False, True
    for raw in frames:
        if not isinstance(raw, dict):
            continue
        name, file = str(raw.get("name", "")), str(raw.get("filename", "")).replace("\\", "/")
        if not is_library(file):
            return ("user" if direct else "library"), is_list
        if any(word in name for word in _STATE_DICT):
            return "state_dict", is_list
        if "/fsdp/" in file or "_fsdp_" in name:
            return "unit", is_list
        if name in ("all_gather", "gather"):
            is_list = True
        direct = direct and (file.endswith(_TRANSPARENT) or file.startswith("<"))
    return "unknown", is_list


def of_ring(ring: RingDump, file: str) -> Traffic:
    """Calls with line, step and region; a gather whose size is reduced and scattered as well is a unit's."""
    traffic = Traffic()
    reduced = {record.numel for record in ring.records if record.op.startswith("reduce_scatter")}
    for record in ring.records:
        item = _ITEM_BYTES.get(record.dtype.removeprefix("torch."), 0)
        base = record.op.removesuffix("_into_tensor").removesuffix("_single")
        ranks = len(record.group.ranks) or ring.world_size or 1
        elements = record.numel * ranks
        if record.op.startswith("reduce_scatter"):
            traffic.order.append((False, record.numel, 0))
            traffic.scattered.add(record.numel * item)
        is_object = record.user_op in _OBJECT_CALLS
        if (base not in _GATHERS and not is_object) or record.numel * item <= 0:
            continue
        kind = _ring_kind(record, is_object, _is_unit(record, elements, reduced))
        if kind == "unit":
            traffic.order.append((True, elements, elements * item))
        traffic.gathers.append(
            Gather(
                kind,
                elements * item,
                ranks,
                file,
                "ring",
                record.op == "all_gather",
                op=record.user_op or record.op,
                step=record.step,
                region=record.region,
                site=Frame(record.file, record.line, record.function) if record.file else None,
                guessed=kind == "unit",
            )
        )
    _only_units(traffic)
    return traffic


def _is_unit(record: RingRecord, elements: int, reduced: set[int]) -> bool:
    return elements in reduced and elements >= LEAST_UNIT and record.op != "all_gather"


def _ring_kind(record: RingRecord, is_object: bool, is_unit: bool) -> Kind:
    if is_object:
        return "object"
    if is_unit:
        return "unit"
    return "library" if not record.file or is_library(record.file) else "user"
