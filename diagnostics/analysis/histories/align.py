"""Aligns all ranks in one pass: which rank issued what at which position (`collective_seq_id`) of which group. Keeps a
few numbers per rank, group and position, plus the deviations: memory does not grow with ranks times entries.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict

from diagnostics.analysis.histories.one_rank import SNAPSHOTS, Digest, Line, RankRecord
from diagnostics.analysis.vote import is_majority
from diagnostics.evidence.calls import NEEDS_ALL, ROOTED, Call, GroupKey, Wire
from diagnostics.evidence.dump_agreement import APART_S, MOMENT_S, SAMPLE, offset
from diagnostics.evidence.flight_entries import DEFAULT_GROUP

LEAST_S = 0.5  # Smaller offsets are not corrected: a call may take that long.
REPORTED_S = 2.0  # NTP keeps clocks of one cluster well within it; smaller offsets are corrected without a note.


class Clocks:
    """Clock offsets between ranks, updated rank by rank."""

    def __init__(self) -> None:
        self.ahead_s: dict[int, float] = {}
        """Rank -> seconds by which its clock is ahead of the first rank's; contains only clocks that are off."""
        self._seen: dict[GroupKey, dict[int, float]] = {}
        """Position -> when the first rank that recorded it made the call, by the first rank's clock."""

    def take(self, digest: Digest) -> None:
        """Estimate the clock offset of one rank, and correct all times in its record."""
        if (record := digest.record) is None:
            return
        times = {key: _times(digest, key, record.lines.get(key)) for key in digest.positions}
        bounds = [offset(self._seen.get(key, {}), own) for key, own in times.items()]
        best = min(filter(None, bounds), key=lambda bound: bound.width_s, default=None)
        ahead_s = best.value_s if best is not None and best.apart_s() > LEAST_S else 0.0
        if ahead_s:
            self.ahead_s[record.rank] = ahead_s
            in_lines = [call for line in record.lines.values() for call in (line.pending, line.last)]
            calls: list[Call | None] = [record.last, *record.p2p, *in_lines]
            for call in {id(call): call for call in calls if call is not None}.values():
                move(call, ahead_s)  # Only once, as several fields may hold the same call.
            if record.time_s is not None:
                record.time_s -= ahead_s
            for positions in digest.positions.values():
                moved = (at_s - ahead_s if at_s else 0.0 for at_s in array("d", positions.times))
                positions.times = array("d", moved).tobytes()
        for key, own in times.items():
            seen = self._seen.setdefault(key, {})
            for seq, at_s in own.items():
                seen.setdefault(seq, at_s - ahead_s)

    def true_s(self, rank: int | None, at_s: float) -> float:
        """Convert a time of a rank's clock to the clock of the first rank."""
        return at_s - self.ahead_s.get(rank, 0.0) if rank is not None else at_s


def _times(digest: Digest, key: GroupKey, line: Line | None) -> dict[int, float]:
    """Return position -> when the rank made the call, for calls in which every rank waits for every other."""
    in_ring = key.recorder == SNAPSHOTS and line is not None and line.last is not None and line.last.completion_known
    if key.recorder != "gloo" and not in_ring:
        return {}
    joined = [all(wire.op not in ROOTED for wire in signature) for signature in digest.signatures]
    rows = zip(*digest.positions[key].arrays(), strict=True)
    return {seq: at_s for seq, number, at_s in rows if at_s and joined[number]}


def move(call: Call, ahead_s: float) -> None:
    """Subtract a clock offset from the time of a call."""
    if call.created_s is not None:
        call.created_s -= ahead_s


_CHUNK_BITS = 8  # A convention: 256 positions are 1 KiB of signature numbers.
_CHUNK = 1 << _CHUNK_BITS
_MASK = _CHUNK - 1
_FIELDS = 3  # Arrays of one chunk: latest arrival, second latest arrival, count.
_FEW = 0.25  # Chosen: fraction of the ranks whose dumps were left by another run; more may be the job's own.
MAX_DEVIATIONS = 8  # Positions kept for each rank and group; all positions after the first one are shifted anyway.


class Arrivals:
    """Latest and second latest arrival at each position of a group, in seconds since 1970 by each rank's clock."""

    def __init__(self) -> None:
        self.times: dict[int, array[float]] = {}  # Chunk of 256 positions -> latest, second latest, count of each.
        self.latest: dict[int, array[int]] = {}
        self.first_s = self.last_s = 0.0

    def add(self, rank: int, positions: "array[int]", arrived_s: "array[float]") -> None:
        """Add one rank's positions in this group and its arrival time at each; 0 = not recorded."""
        for position, at in zip(positions, arrived_s, strict=True):
            if not at:
                continue
            chunk = position >> _CHUNK_BITS
            times = self.times.get(chunk)
            if times is None:
                times = self.times[chunk] = array("d", bytes(8 * _FIELDS * _CHUNK))
                self.latest[chunk] = array("i", bytes(4 * _CHUNK))
            if not self.first_s or at < self.first_s:
                self.first_s = at
            if at > self.last_s:
                self.last_s = at
            index = (position & (_CHUNK - 1)) * _FIELDS
            if at > times[index]:
                times[index + 1] = times[index]
                times[index] = at
                self.latest[chunk][index // _FIELDS] = rank
            elif at > times[index + 1]:
                times[index + 1] = at
            times[index + 2] += 1

    def span_s(self) -> float:
        """Return the time in seconds between the first and the last arrival."""
        return self.last_s - self.first_s

    def positions(self) -> list[tuple[int, int, float, int, float]]:
        """Return (position, last rank, seconds after the second latest, number of ranks, arrival time), ascending."""
        rows = []
        for chunk in sorted(self.times):
            times, latest = self.times[chunk], self.latest[chunk]
            for index in range(_CHUNK):
                count = int(times[index * _FIELDS + 2])
                if count > 1:
                    late_s = times[index * _FIELDS] - times[index * _FIELDS + 1]
                    rows.append(((chunk << _CHUNK_BITS) + index, latest[index], late_s, count, times[index * _FIELDS]))
        return rows


class GroupTable:
    """Positions of all ranks in one group. The first rank that covers a position sets its base for comparison."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.base: dict[int, array[int]] = {}  # Chunk of 256 positions -> signature numbers; 0 = not covered.
        self.deviations: dict[int, dict[int, list[int]]] = {}
        """Position -> signature number -> ranks that issued this instead of the base."""
        self.uses_p2p = False
        self.arrivals = Arrivals()

    def add(self, rank: int, seqs: "array[int]", numbers: "array[int]") -> None:
        """Compare one rank's positions, ascending, with the base."""
        deviations = end = 0
        while end < len(seqs):
            start, first, number_of_chunk = end, seqs[end] & _MASK, seqs[end] >> _CHUNK_BITS
            end = bisect_left(seqs, (number_of_chunk + 1) << _CHUNK_BITS, start, min(start + _CHUNK, len(seqs)))
            chunk = self.base.get(number_of_chunk)
            if chunk is None:
                chunk = self.base[number_of_chunk] = array("I", bytes(4 * _CHUNK))
            has_no_gap = end - start == seqs[end - 1] - seqs[start] + 1
            if has_no_gap and chunk[first : first + end - start] == numbers[start:end]:
                continue  # The usual case: identical to the others.
            for at in range(start, end):
                seq, number = seqs[at], numbers[at]
                base = chunk[seq & _MASK]
                if base == 0:
                    chunk[seq & _MASK] = number
                elif base != number and deviations < MAX_DEVIATIONS:
                    deviations += 1
                    self.deviations.setdefault(seq, {}).setdefault(number, []).append(rank)

    def base_at(self, seq: int) -> int:
        """Return the signature number of a position's base; 0 = not covered."""
        chunk = self.base.get(seq >> _CHUNK_BITS)
        return chunk[seq & _MASK] if chunk is not None else 0

    def issued_at(self, seq: int) -> dict[int, list[int]]:
        """Return signature number -> ranks that issued it at a position up to the first deviation; 0 = not covered."""
        issued = {number: sorted(ranks) for number, ranks in self.deviations.get(seq, {}).items()}
        deviating = {rank for ranks in issued.values() for rank in ranks}
        covering = {rank for rank, line in self.lines.items() if line.first <= seq <= line.issued}
        if covering - deviating:
            issued[self.base_at(seq)] = sorted(covering - deviating)
        return issued


class Survey:
    """Calls of all ranks. Add each rank with `take`, then call `close`."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankRecord] = {}
        self.groups: dict[GroupKey, GroupTable] = {}
        self.declared: dict[GroupKey, tuple[int, ...]] = {}
        self.inferred: dict[GroupKey, tuple[int, ...]] = {}
        """Members of groups without declared members, if only one choice remains."""
        self.world_size: int | None = None
        self.taken_earlier: list[int] = []
        """Ranks whose dumps are older than others': the job made progress in between, so it does not hang there."""
        self.positions = 0  # Number of calls compared.
        self.clocks = Clocks()
        self._numbers: dict[tuple[Wire, ...], int] = {}
        self._needs_all: set[int] = set()
        self._uncounted: dict[tuple[int, GroupKey], Line] = {}

    def take(self, digest: Digest) -> None:
        """Add the digest of one rank."""
        if (record := digest.record) is None:
            return
        self.clocks.take(digest)
        self.ranks[record.rank] = record
        if digest.world_size:
            self.world_size = max(self.world_size or 0, digest.world_size)
        for key, ranks in digest.members.items():
            if len(ranks) > len(self.declared.get(key, ())):
                self.declared[key] = ranks
        for key in digest.with_p2p:
            self.groups.setdefault(key, GroupTable()).uses_p2p = True
        numbers = [self._numbers.setdefault(signature, len(self._numbers) + 1) for signature in digest.signatures]
        signed = zip(numbers, digest.signatures, strict=True)
        self._needs_all |= {number for number, wires in signed if NEEDS_ALL.issuperset(op for op, *_ in wires)}
        for key, line in record.lines.items():
            table = self.groups.setdefault(key, GroupTable())
            table.lines[record.rank] = line
            if (positions := digest.positions.get(key)) is None:
                continue
            if positions.uncounted is not None:
                self._uncounted[record.rank, key] = positions.uncounted
            seqs, local, times = positions.arrays()
            record.began_s = min(filter(None, (record.began_s, next(filter(None, times), None))), default=None)
            self.positions += len(seqs)
            table.add(record.rank, seqs, array("I", [numbers[number] for number in local]))
            table.arrivals.add(record.rank, seqs, times)

    def close(self) -> None:
        """Finish after the last rank: discard all counters of a group in which any rank sent or received."""
        for (rank, key), line in self._uncounted.items():
            if self.groups[key].uses_p2p:
                self.ranks[rank].lines[key] = self.groups[key].lines[rank] = line
        self._uncounted.clear()
        # The ranks by whose dumps they had not issued what others completed, although it needs all ranks.
        earlier: set[int] = set()
        for key, table in self.groups.items():
            if not key.on_devices or table.deviations or not table.lines.keys() <= set(self.declared.get(key, ())):
                continue
            issued = min((line.issued for line in table.lines.values()), default=0)
            done = max((line.done for line in table.lines.values()), default=0)
            needed = next((at for at in range(done, issued, -1) if table.base_at(at) in self._needs_all), 0)
            earlier |= {rank for rank, line in table.lines.items() if line.issued < needed}
        self.taken_earlier = sorted(earlier)

    def apart(self) -> tuple[dict[int, float], bool]:
        """Return ranks whose dumps are not of the time of others' -> seconds by which they are older; if they are few.

        By one of two dumps, which end over a minute apart, a call completed that the other rank had not issued, or
        issued only after the first dump's end. Only for devices: gloo's clocks are compared (`Clocks`).
        """
        needs_all = {0} | self._needs_all  # 0 = only counted.
        lasts = {r: at for r, record in self.ranks.items() if record.last is not None and (at := record.last.created_s)}
        if max(lasts.values(), default=0.0) - min(lasts.values(), default=0.0) <= MOMENT_S:
            return {}, False
        apart, compared = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
        for key, table in self.groups.items():
            ranks = sorted({*self.declared.get(key, ())} & table.lines.keys() & lasts.keys())
            shown = ranks[:: len(ranks) // SAMPLE + 1] if key.on_devices else []
            for rank, other in ((rank, other) for rank in ranks for other in shown if other != rank):
                compared[rank].add(other)
                early, late = sorted((rank, other), key=lasts.__getitem__)
                if lasts[late] - lasts[early] <= MOMENT_S:
                    continue
                first, second = table.lines[early], table.lines[late]
                behind, ahead = sorted((first, second), key=lambda line: line.issued)
                overtaken = any(table.base_at(at) in needs_all for at in range(ahead.done, behind.issued, -1))
                is_done = first.done >= second.first and table.base_at(second.first) in needs_all
                again = (self.ranks[late].began_s or 0.0) - lasts[early] > (MOMENT_S if is_done else APART_S)
                # Sends count too where a group has both, so that a position is not one call of all.
                if overtaken or (again and first.issued >= second.first and not table.uses_p2p):
                    apart[rank].add(other)
        few = {rank for rank, others in apart.items() if is_majority(len(others), len(compared[rank]))}
        is_clear = 0 < len(few) <= _FEW * len(self.ranks) and all(few & {rank, *apart[rank]} for rank in apart)
        ranks = sorted(few if is_clear else apart)
        return {rank: lasts[min(apart[rank])] - lasts[rank] for rank in ranks}, is_clear

    def members(self, key: GroupKey) -> tuple[int, ...]:
        """Return the global ranks of a group: as declared, all ranks for the default group, else those seen in it."""
        if key in self.declared:
            return self.declared[key]
        if key.desc == DEFAULT_GROUP or (key.name == "0" and key.desc in {"", "undefined"}):
            return tuple(range(self.world()))
        return self.inferred.get(key) or (tuple(sorted(self.groups[key].lines)) if key in self.groups else ())

    def membership_known(self, key: GroupKey) -> bool:
        """Return whether `members` is exact rather than a lower bound."""
        return key in self.declared or key.desc == DEFAULT_GROUP

    def world(self) -> int:
        """Return the number of ranks in the job: at least as many as were seen."""
        return max(self.world_size or 0, max(self.ranks, default=-1) + 1)
