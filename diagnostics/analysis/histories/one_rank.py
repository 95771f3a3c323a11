"""Reduces the files of one rank to what the survey keeps: a few calls, and a small number for each position.
Self-contained, so that a worker process can run it: the result survives a round trip through msgpack.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from msgspec import Struct, field

from diagnostics.evidence.calls import LATEST, Call, CallFile, Dump, GroupKey, Wire, settle
from diagnostics.evidence.model import Problem
from diagnostics.evidence.reader import loaded

_AHEAD, _RING = 4, 4096  # A counter beyond this multiple of the recorded positions plus a ring counts other calls too.
SNAPSHOTS = "dtk"  # Recorder whose files exist at any time, even if nothing is wrong.
MAX_P2P = 64  # Pending point-to-point calls kept per rank.


class Line(Struct):
    """Progress of one rank in one group."""

    first: int
    """Oldest position still in its record."""
    issued: int
    """Last position that it issued; 0 = none."""
    done: int
    """Last position that completed on it."""
    pending: Call | None = None
    """The oldest call that did not complete, which the rank waits in."""
    last: Call | None = None
    """The last call, complete or not."""
    active_only: bool = False
    """Whether the dump contains no completed calls, so that positions before `first` are unknown."""


class RankRecord(Struct):
    """Information from the dumps about one rank as a whole."""

    rank: int
    files: list[str] = field(default_factory=list)
    lines: dict[GroupKey, Line] = field(default_factory=dict)
    p2p: list[Call] = field(default_factory=list)
    """Pending sends and receives, oldest first, at most `MAX_P2P`."""
    posted: dict[tuple[GroupKey, str, int | None], int] = field(default_factory=dict)
    """(group, `send` or `recv`, peer) -> number of all pending ones."""
    p2p_done: dict[GroupKey, int] = field(default_factory=dict)
    """Last completed send or receive of each group, if the recorder counts them."""
    last: Call | None = None
    """The most recent call of any kind."""
    only_default_group: bool | None = None
    outside: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of numbered group names between which it belongs to no group."""
    recorders: set[str] = field(default_factory=set)
    time_s: float | None = None
    began_s: float | None = None
    """Time of its first recorded collective."""
    step: int | None = None
    region: str = ""
    stuck_dump: bool = False
    """Whether a dump was written because of a failure (torch's dumps) rather than periodically."""
    shows_begun: bool = False
    """Whether its recorder sees which calls the device has begun."""

    def can_be_in(self, group: str) -> bool:
        """Return whether the rank may belong to a group in which it has no recorded calls."""
        between = group.isdecimal() and any(low < int(group) < high for low, high in self.outside)
        return not self.only_default_group and not between

    def pending(self) -> list[Call]:
        """Return the calls that the rank waits in, one per group, oldest first."""
        calls = [line.pending for line in self.lines.values() if line.pending is not None] + self.p2p[:1]
        return sorted(calls, key=lambda call: (call.created_s or 0.0, call.key, call.seq))


class Positions(Struct):
    """One rank's calls in one group as numeric arrays in bytes, one value per position, ascending."""

    seqs: bytes
    """Positions, int64."""
    signatures: bytes
    """Indices into the digest's signatures, uint32."""
    times: bytes
    """Times in seconds since 1970, float64; 0 = not recorded."""
    uncounted: Line | None = None
    """The line without the recorder's counters, which are unusable in a group with sends and receives."""

    def arrays(self) -> "tuple[array[int], array[int], array[float]]":
        """Return `seqs`, `signatures` and `times` as numbers."""
        return array("q", self.seqs), array("I", self.signatures), array("d", self.times)


class Digest(Struct):
    """Reduced records of one rank."""

    record: RankRecord | None
    """None if no file could be read."""
    problems: list[Problem] = field(default_factory=list)
    positions: dict[GroupKey, Positions] = field(default_factory=dict)
    signatures: list[tuple[Wire, ...]] = field(default_factory=list)
    """Signatures of calls; a coalesced block has several parts."""
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    world_size: int | None = None
    with_p2p: set[GroupKey] = field(default_factory=set)
    """Groups in which it sent or received."""


def load(files: Iterable[CallFile], problems: list[Problem]) -> list[Dump]:
    """Return all dumps in the files; add a problem for each file that cannot be read."""
    return [dump for _, dumps in loaded(files, lambda file: file.load(), problems, "flight") for dump in dumps]


def choose(dumps: list[Dump], attempt: int | None) -> list[Dump]:
    """Return one dump per recorder: of the last attempt, full dumps before black boxes, the most recent first."""
    best: dict[str, tuple[tuple[object, ...], Dump]] = {}
    empty = []
    for dump in dumps:
        if attempt is not None and dump.attempt is not None and dump.attempt != attempt:
            continue
        if not dump.calls and not dump.counters:
            empty.append(dump)
            continue
        with_stacks = any(call.frames or call.stack for call in dump.calls[:8])
        worth = (not dump.black_box, dump.last_s(), with_stacks, len(dump.calls))
        if dump.recorder not in best or worth > best[dump.recorder][0]:
            best[dump.recorder] = (worth, dump)
    chosen = [best[recorder][1] for recorder in sorted(best)]
    return chosen or sorted(empty, key=lambda dump: dump.black_box)[:1]


def digest(rank: int, files: Sequence[CallFile], attempt: int | None) -> Digest:
    """Return the digest of one rank's files; the dumps are dropped afterwards."""
    result = Digest(None)
    dumps = load(files, result.problems)
    for dump in dumps:
        if dump.damaged:
            result.problems.append(Problem("flight", dump.file, "torn_entries", figures={"count": dump.damaged}))
    if not dumps:
        return result
    record = result.record = RankRecord(rank)
    numbers: dict[tuple[Wire, ...], int] = {}
    chosen = choose(dumps, attempt)
    latest_s = max((dump.last_s() for dump in chosen), default=0.0)
    for dump in chosen:
        _about(result, record, dump)
        _calls(result, record, dump, numbers)
        if dump.black_box and dump.time_s is not None and latest_s > dump.time_s:
            # Another recorder saw the rank go on after this snapshot: what was pending then is not where it ended.
            for key in record.lines.keys() & {call.key for call in dump.calls}:
                record.lines[key].pending = None
            record.p2p = [call for call in record.p2p if call.key.recorder != dump.recorder]
    record.p2p.sort(key=lambda call: (call.created_s or 0.0, call.seq))
    result.signatures = list(numbers)
    return result


def _about(result: Digest, record: RankRecord, dump: Dump) -> None:
    if dump.file not in record.files:
        record.files.append(dump.file)
    record.recorders.add(dump.recorder)
    record.stuck_dump |= not dump.black_box and dump.recorder != SNAPSHOTS
    if dump.only_default_group is not None:
        record.only_default_group = dump.only_default_group
    record.outside += dump.outside
    record.time_s = max(filter(None, (record.time_s, dump.time_s)), default=None)
    record.shows_begun |= any(call.begun for call in dump.calls)
    record.step, record.region = dump.step or record.step, dump.region or record.region
    if dump.world_size:
        result.world_size = max(result.world_size or 0, dump.world_size)
    for key, ranks in dump.members.items():
        if len(ranks) > len(result.members.get(key, ())):
            result.members[key] = ranks


def _calls(result: Digest, record: RankRecord, dump: Dump, numbers: dict[tuple[Wire, ...], int]) -> None:
    per_group: dict[GroupKey, list[Call]] = {}
    for call in dump.calls:
        if not call.p2p:
            per_group.setdefault(call.key, []).append(call)
    for call in dump.calls:
        if call.p2p:
            result.with_p2p.add(call.key)
            done = call.seq if call.done else 0
            # NCCL counts collectives and sends of a group together: usable only if the group has one of these kinds.
            if call.key not in per_group:
                done = max(done, dump.counters.get(call.key, (-1, -1))[1])
            record.p2p_done[call.key] = max(record.p2p_done.get(call.key, 0), done)
            if not call.done and call.completion_known:
                message = (call.key, call.p2p, call.peer)
                record.posted[message] = record.posted.get(message, 0) + 1
                if len(record.p2p) < MAX_P2P:
                    record.p2p.append(settle(call))
    if dump.calls:
        youngest = max(dump.calls[-LATEST:], key=lambda call: call.created_s or 0.0)
        if record.last is None or (youngest.created_s or 0.0) >= (record.last.created_s or 0.0):
            record.last = settle(youngest)
    for key, calls in per_group.items():
        calls.sort(key=lambda call: call.seq)
        counters = dump.counters.get(key)
        record.lines[key] = _line(calls, counters)
        seqs, signatures, times = array("q"), array("I"), array("d")
        for seq, same in groupby(calls, key=attrgetter("seq")):
            parts = list(same)
            seqs.append(seq)
            signatures.append(numbers.setdefault(tuple([part.described.wire for part in parts]), len(numbers)))
            times.append(parts[0].created_s or 0.0)
        result.positions[key] = Positions(seqs.tobytes(), signatures.tobytes(), times.tobytes())
        if counters is not None:
            result.positions[key].uncounted = _line(calls, None)
    for key, (enqueued, completed) in dump.counters.items():
        if key not in per_group:
            record.lines[key] = Line(max(enqueued, 0) + 1, max(enqueued, 0), max(completed, 0), active_only=True)


def _line(calls: list[Call], counters: tuple[int, int] | None) -> Line:
    """Return a rank's progress in a group from its calls and, if they match, the recorder's (enqueued, completed)."""
    enqueued, completed = counters or (-1, -1)
    if enqueued > _AHEAD * calls[-1].seq + _RING:
        enqueued = completed = -1  # NCCL uses the same counter for send and recv.
    done = max((call.seq for call in calls if call.done), default=0)
    line = Line(calls[0].seq, max(calls[-1].seq, enqueued), max(done, completed))
    line.active_only = not any(call.done for call in calls)
    waiting = [call for call in calls if not call.done and call.seq > completed]
    if waiting:
        line.pending = settle(waiting[0])
        line.done = min(line.done, waiting[0].seq - 1) if not line.active_only else max(completed, 0)
    line.last = settle(calls[-1])
    return line
