"""Whether flight dumps can be from one job: what two of them record for the same collective must agree. The offset
between two clocks, from collectives that both ranks issued.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.calls import ROOTED, Dump, GroupKey

_TEXTS: dict[str, str] = table_beside(__file__)["texts"]
APART_S = 3600.0
"""Ranks that issue the same collective this far apart are from different jobs: no default timeout is that long."""
SKEW_S = 2.0
"""Upper bound of the clock skew in one cluster."""
SAMPLE = 32
"""Number of dumps that are compared with each other; comparing all would double the time for large evidence."""
MOMENT_S = 60.0
"""Maximum time between dumps that were written together."""
SAME_S = 1.0
"""Maximum difference between two readings of a rank's clock for one call."""
_LEAST_POSITIONS = 3  # Two positions contradict each other at no offset.
SURE_POSITIONS = 16  # Minimum number of positions that give the offset of two clocks.
SURE_RATIO = 500
"""Recorded time over the width of the bounds. Two runs of one program proceed at the same rate to within a few
thousandths and drift apart by that; ranks of one job do not."""
_UNDER_WAY = (1, 2, 4, 8, 16, 32)  # Numbers of positions that may be in flight at the same time.


class _Recorded(NamedTuple):
    at_s: float
    """Time of the call; 0 if unknown."""
    text: str
    op: str
    done: bool


_Calls = dict[tuple[GroupKey, int], _Recorded]


def contradiction(mine: Any, other: Any) -> Phrase | None:
    """Return why two dumps of one rank contradict each other; None if they may be successive dumps of one job."""
    first, second = _calls(_dumps(mine)), _calls(_dumps(other))
    for key in sorted(first.keys() & second.keys()):
        first_call, second_call = first[key], second[key]
        if first_call.text != second_call.text:
            return why("other_call", seq=key[1], first=first_call, second=second_call)
        apart_s = abs(first_call.at_s - second_call.at_s)
        if first_call.at_s and second_call.at_s and apart_s > SAME_S:
            return why("later_call", seq=key[1], apart_s=apart_s)
    return None


def why(row: str, **figures: object) -> Phrase:
    """Return a text of the table with these figures."""
    return Phrase(row, _TEXTS[row], figures)


class Moments:
    """Dumps of several ranks, compared by when they issued the same collectives."""

    def __init__(self, handles: Sequence[Any]) -> None:
        stride = max(1, len(handles) // SAMPLE)
        self.dumps: list[tuple[Any, _Calls]] = []
        self.last_calls: list[tuple[str, float]] = []  # File, and time of its last call.
        for handle in handles[::stride]:
            dumps = _dumps(handle)
            if calls := _calls(dumps):
                self.dumps.append((handle, calls))
            self.last_calls += [(handle.file, dump.last_s()) for dump in dumps]

    def doubt(self) -> Phrase | None:
        """Return why the dumps may be from successive jobs; None if there is no sign of it.

        If some ranks returned from a synchronizing collective before the others entered it, at every position, or did
        so an hour apart, these are other jobs, or clocks are wrong. Only for gloo's calls, which return on completion.
        """
        for early, late in pairwise(self._parts(SKEW_S)):
            first, second = early[0][1], late[0][1]
            hosts = (at for at in first.keys() & second.keys() if at[0].recorder == "gloo")
            far = min((at for at in hosts if second[at].at_s - first[at].at_s > APART_S), default=None)
            if (place := _left_before(first, second) or far) is not None:
                apart_s = second[place].at_s - first[place].at_s
                return why("doubt", early=_who(early), late=_who(late), position=place[1], apart_s=apart_s)
        return None

    def _parts(self, gap_s: float) -> list[list[tuple[Any, _Calls]]]:
        """Return the dumps, split where one issued the first common collective much later than the previous one."""
        if len(self.dumps) < 2:
            return []
        common = set.intersection(*(set(calls) for _, calls in self.dumps))
        if not common:
            return []
        key = min(common, key=lambda item: (item[1], item[0]))
        timed = sorted((calls[key].at_s, n) for n, (_, calls) in enumerate(self.dumps) if calls[key].at_s)
        parts: list[list[tuple[Any, _Calls]]] = []
        last: float | None = None
        for began, n in timed:
            if last is None or (began - last > gap_s and not _in_step(parts[-1][-1][1], self.dumps[n][1])):
                parts.append([])
            parts[-1].append(self.dumps[n])
            last = began
        return parts


def _in_step(early: _Calls, late: _Calls) -> bool:
    """Return whether two ranks proceeded in step, so that only their clocks differ. For gloo's calls only."""
    for key in sorted({key for key, _ in early.keys() & late.keys() if key.recorder == "gloo"}):
        first_times, second_times = (
            {seq: m.at_s for (group, seq), m in calls.items() if group == key and m.at_s and m.op not in ROOTED}
            for calls in (early, late)
        )
        apart = offset(first_times, second_times)
        if apart is not None and apart.sure:
            return True
    return False


def _who(part: list[tuple[Any, _Calls]]) -> tuple[int, ...] | Phrase:
    return tuple(handle.rank for handle, _ in part if handle.rank is not None) or why("others")


def _left_before(early: _Calls, late: _Calls) -> tuple[GroupKey, int] | None:
    """Return the first collective that `early` returned from before `late` entered it."""
    last_call = None
    places = sorted(early.keys() & late.keys())
    for (key, seq), (after_key, after_seq) in pairwise(places):
        if key.recorder != "gloo" or key != after_key or after_seq != seq + 1:
            continue
        call = early[key, seq]
        if not early[key, after_seq].at_s or early[key, after_seq].at_s + SKEW_S > late[key, seq].at_s:
            return None
        if last_call is None and call.done and call.op not in ROOTED:
            last_call = key, seq
    return last_call


def _dumps(handle: Any) -> list[Dump]:
    try:
        return list(handle.load())
    except (OSError, ValueError):
        return []


def _calls(dumps: list[Dump]) -> _Calls:
    calls: _Calls = {}
    shared: set[GroupKey] = set()
    for call in (call for dump in dumps for call in dump.calls if not call.p2p):
        place = call.key, call.seq
        if place in calls:
            shared.add(call.key)  # several groups under one name: positions do not identify calls
        calls[place] = _Recorded(call.created_s or 0.0, call.described.text, call.wire.op, call.done)
    return {place: call for place, call in calls.items() if place[0] not in shared}


class Offset(Struct, frozen=True):
    """Bounds of the time in seconds by which the second clock is ahead of the first."""

    low_s: float
    high_s: float
    span_s: float
    """Recorded time that both ranks share."""
    positions: int

    @property
    def value_s(self) -> float:
        """Return the midpoint; both bounds are tight if ranks continue at once."""
        return (self.low_s + self.high_s) / 2

    @property
    def width_s(self) -> float:
        """Return the uncertainty of the offset."""
        return self.high_s - self.low_s

    @property
    def sure(self) -> bool:
        """Return whether the two proceeded closely enough in step to be ranks of one job."""
        return self.positions >= SURE_POSITIONS and self.span_s >= SURE_RATIO * self.width_s

    def apart_s(self) -> float:
        """Return the minimum difference of the clocks in seconds; 0 if they may agree."""
        return max(self.low_s, -self.high_s, 0.0)


def offset(first: Mapping[int, float], second: Mapping[int, float]) -> Offset | None:
    """Compare two ranks; return None if they did not proceed in step, or share too few positions.

    Both map a position in the group to the time of the call (s, by the rank's clock). Only synchronous calls that all
    ranks must enter before any returns, so none with a root.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < _LEAST_POSITIONS:
        return None
    span_s = min(calls[common[-1]] - calls[common[0]] for calls in (first, second))
    for under_way in _UNDER_WAY:
        low_s = max((second[at] - first[at + under_way] for at in common if at + under_way in first), default=None)
        high_s = min((second[at + under_way] - first[at] for at in common if at + under_way in second), default=None)
        if low_s is None or high_s is None:
            return None
        if low_s <= high_s:
            return Offset(low_s, high_s, span_s, len(common))
    return None
