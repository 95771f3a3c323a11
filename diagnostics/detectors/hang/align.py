"""One streaming pass over the dumps of all ranks: who issued what at which position of which group.

Positions are those of the group (`collective_seq_id`), never of the file, so rings that wrapped at
different places line up. Holds per rank and group a few numbers and two calls, per group and position
one small integer, and what deviates: memory does not grow with ranks times entries. Knows no verdict.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from diagnostics.detectors.hang.arrivals import Arrivals
from diagnostics.evidence.calls import Call, Dump, GroupKey, Wire, settle
from diagnostics.evidence.flight_entries import DEFAULT_GROUP

_CHUNK_BITS = 8
_CHUNK = 1 << _CHUNK_BITS
_MASK = _CHUNK - 1
MAX_DEVIATIONS = 8
"""Positions kept for each rank and group; after the first one all later ones are shifted anyhow."""
SNAPSHOTS = "dtk"
"""Recorder whose files are there at any time, also when nothing is wrong."""
MAX_P2P = 64
"""Pending point-to-point calls kept of each rank."""


@dataclass(slots=True)
class Line:
    """One rank in one group."""

    first: int
    """Oldest position that its record still holds."""
    issued: int
    """Last position that it reached; 0 = none."""
    done: int
    """Last position that completed on it."""
    pending: Call | None = None
    """The oldest call that did not complete: where the rank waits."""
    pending_count: int = 0
    last: Call | None = None
    """The last call, complete or not."""
    active_only: bool = False
    """The dump holds no completed calls, so positions before `first` say nothing."""


@dataclass(slots=True)
class RankRecord:
    """What the dumps say about one rank as a whole."""

    rank: int
    files: list[str] = field(default_factory=list)
    lines: dict[GroupKey, Line] = field(default_factory=dict)
    p2p: list[Call] = field(default_factory=list)
    """Pending sends and receives, oldest first."""
    p2p_done: dict[GroupKey, int] = field(default_factory=dict)
    """Last send or receive of a group that completed, where the recorder counts them."""
    last: Call | None = None
    """The youngest call of any kind."""
    only_default_group: bool | None = None
    recorders: set[str] = field(default_factory=set)
    time_s: float | None = None
    step: int | None = None
    region: str = ""
    stuck_dump: bool = False
    """Written because something was wrong (torch's dumps), not periodically."""

    def pending(self) -> list[Call]:
        """Calls that it waits in, one for each group, oldest first."""
        calls = [line.pending for line in self.lines.values() if line.pending is not None] + self.p2p[:1]
        return sorted(calls, key=lambda call: (call.created_s or 0.0, call.key, call.seq))


class GroupTable:
    """All ranks' positions of one group. The first rank that covers a position sets its base; the rest are compared."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.base: dict[int, array[int]] = {}
        """Chunk of 256 positions -> signature numbers; 0 = not covered."""
        self.deviations: dict[int, dict[int, list[int]]] = {}
        """Position -> signature number -> ranks that issued this instead of the base."""
        self.uses_p2p = False
        self.arrivals = Arrivals()

    def add(self, rank: int, positions: list[tuple[int, int]]) -> None:
        """Compare one rank's positions, ascending, with the base."""
        deviations = 0
        for seq, number in positions:
            chunk = self.base.get(seq >> _CHUNK_BITS)
            if chunk is None:
                chunk = self.base[seq >> _CHUNK_BITS] = array("I", bytes(4 * _CHUNK))
            known = chunk[seq & _MASK]
            if known == 0:
                chunk[seq & _MASK] = number
            elif known != number and deviations < MAX_DEVIATIONS:
                deviations += 1
                self.deviations.setdefault(seq, {}).setdefault(number, []).append(rank)

    def base_at(self, seq: int) -> int:
        """Signature number of the base; 0 when no rank covers the position."""
        chunk = self.base.get(seq >> _CHUNK_BITS)
        return chunk[seq & _MASK] if chunk is not None else 0

    def issued_at(self, seq: int) -> dict[int, list[int]]:
        """Signature number -> ranks that issued it at a position up to the first deviation."""
        odd = self.deviations.get(seq, {})
        odd_ranks = {rank for ranks in odd.values() for rank in ranks}
        usual = [
            rank for rank, line in self.lines.items() if line.first <= seq <= line.issued and rank not in odd_ranks
        ]
        found = {number: sorted(ranks) for number, ranks in odd.items()}
        if usual:
            found[self.base_at(seq)] = sorted(usual)
        return found


class Survey:
    """What all ranks together did. Fill it rank by rank with `add`."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankRecord] = {}
        self.groups: dict[GroupKey, GroupTable] = {}
        self.declared: dict[GroupKey, tuple[int, ...]] = {}
        self.world_size: int | None = None
        self.positions = 0
        """Calls compared."""
        self._numbers: dict[object, int] = {}
        self._signatures: list[object] = [None]

    def add(self, rank: int, dumps: Iterable[Dump]) -> None:
        """Take in all dumps of one rank; they can be dropped afterwards."""
        record = self.ranks.setdefault(rank, RankRecord(rank))
        for dump in dumps:
            if dump.file not in record.files:
                record.files.append(dump.file)
            record.recorders.add(dump.recorder)
            record.stuck_dump |= not dump.black_box and dump.recorder != SNAPSHOTS
            if dump.only_default_group is not None:
                record.only_default_group = dump.only_default_group
            record.time_s = max(filter(None, (record.time_s, dump.time_s)), default=None)
            record.step, record.region = dump.step or record.step, dump.region or record.region
            if dump.world_size:
                self.world_size = max(self.world_size or 0, dump.world_size)
            self._members(dump)
            self._calls(record, dump)
        record.p2p.sort(key=lambda call: (call.created_s or 0.0, call.seq))

    def wire(self, number: int) -> Wire | None:
        """The signature behind a number; of a coalesced block its first part."""
        value = self._signatures[number]
        return value[0] if isinstance(value, tuple) and value and isinstance(value[0], Wire) else value  # type: ignore[return-value]

    def members(self, key: GroupKey) -> tuple[int, ...]:
        """Global ranks of a group: as declared, all ranks for the default group, else those seen in it."""
        if key in self.declared:
            return self.declared[key]
        if key.desc == DEFAULT_GROUP or (key.name == "0" and key.desc in {"", "undefined"}):
            return tuple(range(self.world()))
        return tuple(sorted(self.groups[key].lines)) if key in self.groups else ()

    def membership_known(self, key: GroupKey) -> bool:
        """Whether `members` is all of them rather than a lower bound."""
        return key in self.declared or key.desc == DEFAULT_GROUP

    def world(self) -> int:
        """Ranks of the job, at least as many as were seen."""
        return max(self.world_size or 0, max(self.ranks, default=-1) + 1)

    def _members(self, dump: Dump) -> None:
        for key, ranks in dump.members.items():
            known = self.declared.get(key)
            if known is None or len(ranks) > len(known):
                self.declared[key] = ranks

    def _calls(self, record: RankRecord, dump: Dump) -> None:
        per_group: dict[GroupKey, list[Call]] = {}
        for call in dump.calls:
            if not call.p2p:
                per_group.setdefault(call.key, []).append(call)
        for call in dump.calls:
            if call.p2p:
                self._point_to_point(record, call, dump, bool(per_group.get(call.key)))
        if dump.calls:
            youngest = max(dump.calls[-64:], key=lambda call: call.created_s or 0.0)
            if record.last is None or (youngest.created_s or 0.0) >= (record.last.created_s or 0.0):
                record.last = settle(youngest)
        for key, calls in per_group.items():
            self._line(record, key, calls, dump)
        for key, (enqueued, completed) in dump.counters.items():
            if key not in per_group:
                table = self.groups.setdefault(key, GroupTable())
                line = Line(max(enqueued, 0) + 1, max(enqueued, 0), max(completed, 0), active_only=True)
                record.lines[key] = table.lines[record.rank] = line

    def _point_to_point(self, record: RankRecord, call: Call, dump: Dump, shared_counter: bool) -> None:
        """NCCL counts collectives and sends of a group together: of use only where there is one kind of them."""
        self.groups.setdefault(call.key, GroupTable()).uses_p2p = True
        done = call.seq if call.done else 0
        if not shared_counter:
            done = max(done, dump.counters.get(call.key, (-1, -1))[1])
        record.p2p_done[call.key] = max(record.p2p_done.get(call.key, 0), done)
        if not call.done and call.completion_known and len(record.p2p) < MAX_P2P:
            record.p2p.append(settle(call))

    def _line(self, record: RankRecord, key: GroupKey, calls: list[Call], dump: Dump) -> None:
        table = self.groups.setdefault(key, GroupTable())
        calls.sort(key=lambda call: call.seq)
        enqueued, completed = dump.counters.get(key, (-1, -1))
        if table.uses_p2p or enqueued > 4 * calls[-1].seq + 4096:
            enqueued = completed = -1  # NCCL counts send and recv in the same number.
        done = max((call.seq for call in calls if call.done), default=0)
        line = Line(calls[0].seq, max(calls[-1].seq, enqueued), max(done, completed))
        line.active_only = not any(call.done for call in calls)
        waiting = [call for call in calls if not call.done and call.seq > completed]
        if waiting:
            line.pending, line.pending_count = settle(waiting[0]), len(waiting)
            line.done = min(line.done, waiting[0].seq - 1) if not line.active_only else max(completed, 0)
        line.last = settle(calls[-1])
        record.lines[key] = table.lines[record.rank] = line
        positions = list(self._positions(calls))
        self.positions += len(positions)
        table.add(record.rank, positions)
        table.arrivals.add(record.rank, calls)

    def _positions(self, calls: list[Call]) -> Iterator[tuple[int, int]]:
        """(position, signature number); the parts of a coalesced block share a position and make one signature."""
        numbers = self._numbers
        at, size = 0, len(calls)
        while at < size:
            call = calls[at]
            signature: object = call.described.wire
            end = at + 1
            while end < size and calls[end].seq == call.seq:
                end += 1
            if end - at > 1:
                signature = tuple(part.described.wire for part in calls[at:end])
            number = numbers.get(signature)
            if number is None:
                number = numbers[signature] = len(self._signatures)
                self._signatures.append(signature)
            yield call.seq, number
            at = end
