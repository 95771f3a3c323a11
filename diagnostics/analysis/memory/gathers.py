"""One rank's gathers and reductions, from flight dumps and rings: sizes, callers, counts, and the sharded units that
their order shows.

Units of equal size look alike one by one, and one unit may be used several times in a step. What tells them apart:
a unit that is not gathered again in backward was still there, so several gathers of a forward pass are of as many
units; a gather ahead of its use (prefetch) is another unit's than the one at work; a trace names units, and one
root calls back once at the end of a backward pass. Where none of it holds, the sum is a lower bound.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_state.py (2.4 to 2.13).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.analysis.vote import is_majority
from diagnostics.contract.files import table_beside
from diagnostics.contract.mesh import MODEL
from diagnostics.evidence.calls import Call, GroupKey, is_library, settle
from diagnostics.evidence.model import Frame
from diagnostics.evidence.ring.format import RingDump
from diagnostics.evidence.trace.model import DTYPE_BYTES

Kind = Literal["unit", "user", "object", "state_dict", "library", "unknown"]
_OWN = re.compile(r"(?:^|/)dtk/(?:tasks|dimensions|models|train)/[^/]+$")
"""dtk's own code, whose gathers are part of a layout, such as the maximum of logits over a sharded vocabulary."""
_STATE_DICT, _OBJECT_CALLS, TRANSPARENT, GATHERS, _IN_BACKWARD, _PREFETCHES, _REDUCTIONS = (
    tuple[str, ...](names) for names in table_beside(__file__).values()
)
"""Names of functions, files and operations, documented in the table."""
_ONCE = 1.1  # Gathered over reduced bytes: 1 = once per step, almost 2 = again in backward; a dump may begin mid-step.
What = Literal["gather", "reduce", "root_end"]
Phase = Literal["forward", "backward", ""]
LEAST_UNIT = 1024  # Number of elements below which a gather and a reduction may have the same size by chance.


class Move(Struct, frozen=True):
    """One gather or reduction of a sharded unit, or the end of a root's backward pass, as the host issued it."""

    what: What
    unit: str | int
    """Name in traces (empty for a root), otherwise the number of elements of the whole unit."""
    full_bytes: int = 0
    """Size of the output of a gather."""
    phase: Phase = ""
    """Phase of a gather; empty if unknown."""
    ahead: bool = False
    """Whether this is a prefetch: a gather in backward for a unit that is not needed yet."""


class Whole(Struct, frozen=True):
    """The total size of all units, as they are gathered."""

    least_bytes: int
    """Lower bound of the total; 0 if nothing is known."""
    is_exact: bool = False
    """Whether `least_bytes` is the exact total. False if units of equal size could not be distinguished."""
    roots: int = 0
    """Number of units wrapped individually, with no enclosing root; 0 if unknown."""


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
        return whole_of(self.moves)

    def kept_units(self) -> list[UnitUse]:
        """Return the units of a trace that backward did not gather again, without the root, if they hold most bytes."""
        used = [unit for name, unit in self.units.items() if name and unit.backwards and unit.full_bytes]
        kept = [unit for unit in used if unit.gathers <= unit.forwards]
        most = 2 * sum(unit.full_bytes for unit in kept) > sum(unit.full_bytes for unit in used)
        return kept if len(kept) > 1 and most else []

    def kept_bytes(self) -> int:
        """Return the bytes of units gathered no more often than reduced, several in a row; 0 if freed or unknown."""
        remaining = remaining_of(self.moves)
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


class _Pass(Struct):
    """Calls from the first gather of a forward pass to the end of the backward pass that follows."""

    forward: Counter[str | int] = field(default_factory=Counter)
    forward_bytes: Counter[str | int] = field(default_factory=Counter)
    backward: Counter[str | int] = field(default_factory=Counter)
    ahead: Counter[str | int] = field(default_factory=Counter)
    reduced: Counter[str | int] = field(default_factory=Counter)
    roots: int = 0
    """Largest number of roots whose backward ended with no gather in between."""


def whole_of(moves: Sequence[Move]) -> Whole:
    """Return the total size of the units in one rank's moves. `is_exact` is set only if every unit could be counted."""
    largest: dict[str | int, int] = {}
    passes = [_Pass()]
    went_back, ended = False, 0
    for move in moves:
        if move.what == "gather":
            largest[move.unit] = max(largest.get(move.unit, 0), move.full_bytes)
        if move.what == "gather" and move.phase == "forward" and went_back:
            passes.append(_Pass())
            went_back, ended = False, 0
        now = passes[-1]
        if move.what == "root_end":
            went_back, ended = True, ended + 1
            now.roots = max(now.roots, ended)
        elif move.what == "reduce":
            went_back = True
            now.reduced[move.unit] += 1
        elif move.phase == "forward":
            now.forward[move.unit] += 1
            now.forward_bytes[move.unit] += move.full_bytes
        elif move.phase == "backward":
            went_back, ended = True, 0
            now.backward[move.unit] += 1
            now.ahead[move.unit] += move.ahead
    roots = max((each.roots for each in passes), default=0)
    total, exact = 0, bool(largest)
    for key, each_bytes in largest.items():
        named = isinstance(key, str) and roots == 1
        size_bytes = each_bytes if named else _together(passes, key, len(largest) == 1, roots)
        total += size_bytes or each_bytes
        exact = exact and size_bytes is not None
    return Whole(total, exact, roots)


def _together(passes: Iterable[_Pass], key: str | int, alone: bool, roots: int) -> int | None:
    """Return the bytes of all units with this key, which may be the only one; None if there may be several.

    Passes that are cut off or have several forward passes are ignored.
    """
    votes: Counter[tuple[bool, int]] = Counter()
    for each in passes:
        times = each.forward[key]
        if not times or times != each.reduced[key]:
            continue
        ahead = each.ahead[key] >= (1 if alone and times == 2 else max(2, times - 1))
        is_clear = times == 1 or not each.backward[key] or ahead or roots >= times
        votes[is_clear, each.forward_bytes[key]] += 1
    if not votes:
        return None
    (is_clear, size_bytes), _ = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    return size_bytes if is_clear else None


def remaining_of(moves: Sequence[Move]) -> Whole | None:
    """Return all units if a rank gathers them no more often than it reduces them, several in a row; otherwise None."""
    sizes = {move.unit: move.full_bytes for move in moves if move.what == "gather"}
    gathered = sum(move.full_bytes for move in moves if move.what == "gather")
    reduced = sum(sizes.get(move.unit, 0) for move in moves if move.what == "reduce")
    in_a_row = any(a.what == b.what == "gather" for a, b in pairwise(moves))
    if not in_a_row or not reduced or gathered > _ONCE * reduced:
        return None
    all_forward = [Move(m.what, m.unit, m.full_bytes, "forward" if m.what == "gather" else "") for m in moves]
    return whole_of(all_forward)
