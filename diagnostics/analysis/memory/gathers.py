"""One rank's gathers and reductions, from flight dumps and rings: sizes, callers, counts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.analysis.memory import units
from diagnostics.analysis.memory.units import Move, Phase, Whole
from diagnostics.analysis.vote import is_majority
from diagnostics.contract.files import table_beside
from diagnostics.contract.mesh import MODEL
from diagnostics.evidence.calls import Call, GroupKey, is_library, settle
from diagnostics.evidence.model import Frame
from diagnostics.evidence.ring.format import RingDump
from diagnostics.evidence.trace.events import DTYPE_BYTES

Kind = Literal["unit", "user", "object", "state_dict", "library", "unknown"]
_OWN = re.compile(r"(?:^|/)dtk/(?:tasks|dimensions|models|train)/[^/]+$")
"""dtk's own code, whose gathers are part of a layout, such as the maximum of logits over a sharded vocabulary."""
_STATE_DICT, _OBJECT_CALLS, TRANSPARENT, GATHERS, _IN_BACKWARD, _PREFETCHES, _REDUCTIONS = (
    tuple[str, ...](names) for names in table_beside(__file__).values()
)
"""Names of functions, files and operations, documented in the table."""
LEAST_UNIT = 1024  # Number of elements below which a gather and a reduction may have the same size by chance.


class Gather(Struct, frozen=True):
    """One call that gathers data from other ranks onto this one."""

    kind: Kind
    full_bytes: int
    """Size of the full output, over all ranks."""
    ranks: int
    """Number of ranks in the group."""
    file: str
    evidence: str
    """Kind of the evidence: `trace`, `flight` or `ring`."""
    is_list: bool = False
    unit: str = ""
    """Name of the FSDP unit; empty for the root."""
    op: str = "all_gather"
    step: int | None = None
    region: str = ""
    site: Frame | None = None
    like_parameter: bool = False
    """Whether this rank's part has the size of one of the parameters."""
    at_head: bool = False
    """Whether `site` is the first line of the function, which is all that a trace records."""
    start_us: float | None = None
    guessed: bool = False
    """Whether it is attributed to a unit by size alone; sequence parallelism also gathers and reduces equal sizes."""


class UnitUse(Struct):
    """How often one FSDP unit was used within the window."""

    full_bytes: int = 0
    gathers: int = 0
    forwards: int = 0
    backwards: int = 0


class Traffic(Struct):
    """Gathers of one rank, from one kind of evidence."""

    gathers: list[Gather] = field(default_factory=list)
    units: dict[str, UnitUse] = field(default_factory=dict)
    """Uses by unit name; only from traces."""
    scattered: set[int] = field(default_factory=set)
    """Sizes in bytes of the full inputs of reduce_scatters."""
    threads: list[int] = field(default_factory=list)
    """Host thread of each gather; only from traces."""
    moves: list[Move] = field(default_factory=list)
    """Gathers and reductions of sharded units, in order of issue."""

    @property
    def whole(self) -> Whole:
        """The total size of all sharded units, as they are gathered."""
        return units.whole(self.moves)

    def kept_units(self) -> list[UnitUse]:
        """Return the units of a trace that backward did not gather again, without the root, if they hold most bytes."""
        used = [unit for name, unit in self.units.items() if name and unit.backwards and unit.full_bytes]
        kept = [unit for unit in used if unit.gathers <= unit.forwards]
        most = 2 * sum(unit.full_bytes for unit in kept) > sum(unit.full_bytes for unit in used)
        return kept if len(kept) > 1 and most else []

    def kept_bytes(self) -> int:
        """Return the bytes of units gathered no more often than reduced, several in a row; 0 if freed or unknown."""
        remaining = units.remaining(self.moves)
        return remaining.least_bytes if remaining is not None else 0


def of_calls(
    calls: Sequence[Call], members: Mapping[GroupKey, tuple[int, ...]], file: str, world_size: int | None
) -> Traffic:
    """Classify gathers by frames of a flight dump; without frames, a gather whose size is also reduced is a unit's."""
    traffic = Traffic()
    reduced = {sum(call.wire.amounts) for call in calls if call.wire.op in _REDUCTIONS}
    # The size of a sharded group that the dump omits: units are reduced whole and gathered from equal parts.
    gathered = (sum(call.wire.amounts) for call in calls if call.wire.op in GATHERS)
    parts = Counter(size for size in gathered if size >= LEAST_UNIT)
    votes: Counter[int] = Counter()
    for part, count in parts.items():
        votes.update({whole // part: count for whole in reduced if whole % part == 0 and whole > part})
    best, count = max(votes.items(), key=lambda vote: (vote[1], -vote[0]), default=(0, 0))
    likely = (best if is_majority(count, parts.total()) else 0) or world_size or 1
    for call in calls:
        wire = call.wire
        item = DTYPE_BYTES.get(wire.dtypes[0], 0) if wire.dtypes else 0
        elements = sum(wire.amounts)
        ranks = len(members.get(call.key, ())) or likely
        if wire.op in _REDUCTIONS:
            traffic.moves.append(Move("reduce", elements))
        if wire.op == "reduce_scatter":
            traffic.scattered.add(elements * item)
        if wire.op not in GATHERS or not elements * item:
            continue
        kind, is_list = _caller(call)
        frames = call.frames if isinstance(call.frames, list | tuple) else ()
        names = {str(raw.get("name", "")) for raw in frames if isinstance(raw, dict)}
        guessed = kind == "unknown" and elements * ranks in reduced and elements >= LEAST_UNIT
        kind = "unit" if guessed else kind
        settled = settle(call)  # removes the frames
        kind = "object" if settled.user_op in _OBJECT_CALLS else kind
        full, op = elements * item * ranks, settled.user_op or wire.op
        if kind == "unit":
            backward = not names.isdisjoint(_IN_BACKWARD)
            phase: Phase = "backward" if backward else "forward" if names else ""
            ahead = backward and not names.isdisjoint(_PREFETCHES)
            traffic.moves.append(Move("gather", elements * ranks, full, phase, ahead))
        gather = Gather(kind, full, ranks, file, "flight", is_list, op=op, step=call.step, region=call.region)
        traffic.gathers.append(replace(gather, site=settled.site, guessed=guessed))
    _only_units(traffic)
    return traffic


def _only_units(traffic: Traffic) -> None:
    """Keep only reductions whose size is also gathered: gloo records reduce_scatter as all_reduce."""
    sizes = {move.unit for move in traffic.moves if move.what == "gather"}
    traffic.moves = [move for move in traffic.moves if move.unit in sizes]


def _caller(call: Call) -> tuple[Kind, bool]:
    """Return the caller, by frames between torch and the user's code, and whether the output is a list of tensors."""
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
        direct = direct and (file.endswith(TRANSPARENT) or file.startswith("<"))
    return "unknown", is_list


def of_ring(ring: RingDump, file: str) -> Traffic:
    """Return a ring's gathers and moves; a gather whose size is also reduced and scattered belongs to a unit."""
    traffic = Traffic()
    reduced = {record.numel for record in ring.records if record.op.startswith("reduce_scatter")}
    for record in ring.records:
        item = DTYPE_BYTES.get(record.dtype.removeprefix("torch."), 0)
        base = record.op.removesuffix("_into_tensor").removesuffix("_single")
        ranks = len(record.group.ranks) or ring.world_size or 1
        elements = record.numel * ranks
        if record.op.startswith("reduce_scatter"):
            traffic.moves.append(Move("reduce", record.numel))
            traffic.scattered.add(record.numel * item)
        is_object = record.user_op in _OBJECT_CALLS
        if (base not in GATHERS and not is_object) or record.numel * item <= 0:
            continue
        is_unit = elements in reduced and elements >= LEAST_UNIT and record.op != "all_gather" and not is_object
        inside = record.group.desc.removeprefix("mesh_") in MODEL or _OWN.search(record.file)
        by_library = bool(inside) or not record.file or is_library(record.file)
        kind: Kind = "object" if is_object else "unit" if is_unit else "library" if by_library else "user"
        if is_unit:
            traffic.moves.append(Move("gather", elements, elements * item))
        full, is_list, op = elements * item, record.op == "all_gather", record.user_op or record.op
        site = Frame(record.file, record.line, record.function) if record.file else None
        gather = Gather(kind, full, ranks, file, "ring", is_list, op=op, step=record.step, region=record.region)
        traffic.gathers.append(replace(gather, site=site, guessed=is_unit))
    _only_units(traffic)
    return traffic
