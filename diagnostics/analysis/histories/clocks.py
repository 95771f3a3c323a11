"""The ranks' clocks: each is brought to that of the first rank, where the calls show it is off.
Only by calls that a rank waits for: gloo's, and those of a ring that were complete when they returned.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator

from diagnostics.analysis.histories.one_rank import SNAPSHOTS, Digest, Line
from diagnostics.evidence.calls import ROOTED, Call, GroupKey
from diagnostics.evidence.clock_offset import offset

LEAST_S = 0.5  # A clock that is off by less is left alone: so long a call may well take.
REPORTED_S = 2.0  # A convention: NTP keeps clocks of one cluster well within it.


class Clocks:
    """Filled rank by rank."""

    def __init__(self) -> None:
        self.ahead_s: dict[int, float] = {}
        """Rank -> seconds by which its clock is ahead of that of the first rank; only those that are off."""
        self._seen: dict[GroupKey, dict[int, float]] = {}
        """Position -> when the first rank that tells of it made the call, by the first rank's clock."""

    def take(self, digest: Digest) -> None:
        """One rank: finds out how far its clock is off, and corrects all times in its record."""
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
                move(call, ahead_s)  # Once, as the same call may stand in several places.
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

    def far_off(self) -> Iterator[tuple[float, list[int]]]:
        """Seconds ahead, and the ranks whose clocks are so far off: what a report should mention."""
        together: defaultdict[int, list[int]] = defaultdict(list)
        for rank, ahead_s in sorted(self.ahead_s.items()):
            if abs(ahead_s) > REPORTED_S:
                together[round(ahead_s)].append(rank)
        for ranks in together.values():
            yield self.ahead_s[ranks[0]], ranks


def _times(digest: Digest, key: GroupKey, line: Line | None) -> dict[int, float]:
    """Position -> when the rank made the call, of calls in which every rank waits for every other one."""
    in_ring = key.recorder == SNAPSHOTS and line is not None and line.last is not None and line.last.completion_known
    if key.recorder != "gloo" and not in_ring:
        return {}
    joined = [all(wire.op not in ROOTED for wire in signature) for signature in digest.signatures]
    rows = zip(*digest.positions[key].arrays(), strict=True)
    return {seq: at_s for seq, number, at_s in rows if at_s and joined[number]}


def move(call: Call, ahead_s: float) -> None:
    """Subtract from the call's time how far the clock is ahead."""
    if call.created_s is not None:
        call.created_s -= ahead_s
