"""Detection of a desync (different collectives at one position of a group) or a stall among live ranks, and its
verdict. The live watch and the launcher's check of dead ranks share it. Only ranks that the calls single out are
blamed. Positions are found here, by hashes that ranks exchange while they run (`divergence.identity.signature`); which
ranks differ and how is decided by `divergence.find`, as for a finished job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from diagnostics.analysis.divergence.find import between
from diagnostics.analysis.vote import OF_JOB, count_votes, is_majority
from diagnostics.contract.artifacts import RunPaths, Verdict
from diagnostics.contract.formatting import file_name, ranks_spoken
from diagnostics.evidence.calls import Call
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile, call_of
from diagnostics.evidence.ring.format import RingDump, RingRecord, format_ranks, parse_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_SHOWN = 4  # Chosen: groups of ranks that a sentence names; with more it is not read to its end.
LOOKED_BACK = 32  # Chosen: calls before a difference in which ranks may have diverged without one.
LOOKED_AHEAD = 8  # Chosen: calls after it, which show what was omitted or added.

K = TypeVar("K", int, tuple[int, str])  # A position, alone or with the group.
History = tuple[int, tuple[int, ...]]
"""Number of calls of one rank on one group, and the rolling hash after each of the last ones."""
_DEPARTURES = (("failed", "failed"), ("end", "exited normally"))  # How a rank left -> wording, in order of the text.


@dataclass(frozen=True, slots=True)
class Place:
    """The current place of one rank."""

    rank: int
    call: str
    """`all_reduce [1024] float32 SUM`; empty if the rank is outside any call."""
    site: str
    """`train.py:12 in step`"""
    group: str = ""
    step: int | None = None
    region: str | None = None
    group_name: str = ""
    """The group's name for users."""
    members: str = ""
    """Global ranks of the group, as formatted by `diagnostics.evidence.ring.format.format_ranks`."""


@dataclass(frozen=True, slots=True)
class Called:
    """The calls of one rank in a group around a position."""

    rank: int
    group: str
    signature: int
    """Hash of what the ranks must agree on at the position, as in the ring."""
    calls: list[Call]
    """The call at the position, and its neighbours that the ring still holds, oldest first."""


def first_difference(histories: Mapping[int, History]) -> int | None:
    """Return the first known position at which two ranks of a group called different collectives, or None.

    Only hashes after the same number of calls are compared, so a rank may be ahead of the others.
    """
    ordered = sorted((history for history in histories.values() if history[1]), key=itemgetter(0))
    # Equal hashes after n calls mean n equal calls, so where each rank agrees with the next one, all do.
    if all(m - n < len(more) and hashes[-1] == more[n - m - 1] for (n, hashes), (m, more) in pairwise(ordered)):
        return None
    calls = (call for count, hashes in ordered for call in enumerate(hashes, count - len(hashes) + 1))
    return _first_differing(calls)


def _first_differing(issued: Iterable[tuple[K, int]]) -> K | None:
    """Return the first place at which the hashes of two calls differ; None if all agree."""
    hashes: dict[K, int] = {}
    return min((place for place, value in issued if hashes.setdefault(place, value) != value), default=None)


def place_of(record: RingRecord, rank: int, step: int | None) -> Place:
    """Return the place of a rank inside a call."""
    call, members = call_of(record), format_ranks(record.group.ranks)
    key, site, region = call.key.label, site_of(call), record.region or None
    return Place(rank, call.text, site, record.group.key, step, region, key, members)


def called_at(ring: RingDump, group: str, position: int) -> Called | None:
    """Return the calls of a rank around a position of a group; None if its ring does not hold the position."""
    near = range(position - LOOKED_BACK, position + LOOKED_AHEAD + 1)
    records = {r.seq: r for r in ring.records if not r.is_p2p and r.group.key == group and r.seq in near}
    if position not in records:
        return None
    first = position
    while first - 1 in records:
        first -= 1
    calls = [call_of(record) for seq, record in sorted(records.items()) if seq >= first]
    return Called(ring.rank, group, records[position].signature, calls)


def desync(called: list[Called], position: int, attempt: int, time_s: float) -> Verdict:
    """Return the verdict on a proven difference, from each rank's call there as far as it is still known."""
    if not called:
        reason = desync_text("", position, position, [])
        return Verdict("desync", reason, [], [], "", position, attempt=attempt, time_s=time_s)
    histories = {side.rank: {call.seq: call for call in side.calls} for side in called}
    issued = {side.rank: side.signature for side in called}
    vote = count_votes(called[0].calls[0].key, position, issued, histories)
    first_difference = between(vote, lambda rank, _: list(histories[rank].values())) if len(vote.sides) > 1 else None
    culprits = list(first_difference.culprits) if first_difference is not None and not first_difference.tie else []
    first_position = first_difference.position if first_difference is not None else position
    first = histories[culprits[0] if culprits else called[0].rank].get(first_position, called[0].calls[-1])
    firsts = [(ranks, histories[ranks[0]].get(first_position)) for ranks in vote.sides[:_SHOWN]]
    reason = desync_text(first.key.label, first_position, position, [(ranks, call) for ranks, call in firsts if call])
    victims = [rank for rank in vote.present if rank not in culprits] if culprits else []
    at = (called[0].group, first_position, first.step, first.region or None)
    return Verdict("desync", reason, culprits, victims, *at, attempt, time_s)


def stall(
    places: list[Place], silent: list[int], departures: Mapping[int, str], stood_s: float, attempt: int, time_s: float
) -> Verdict:
    """Return the verdict on a stall: which ranks are outside any call, or have exited, while others wait inside one.

    `departures` are ranks that no longer participate -> `failed` or `end`; those that no rank waits for do not matter.
    `stood_s` are seconds without progress. The ranks outside are no side of a vote, as the others wait for them: half
    may be blamed, but not a majority, as the call inside may be the wrong one.
    """
    inside = [place for place in places if place.call]
    outside = [place for place in places if not place.call]
    awaited = {rank for place in inside for rank in parse_ranks(place.members)}
    departed = {rank: how for rank, how in departures.items() if rank in awaited}
    few_outside = bool(inside) and not is_majority(len(outside) + len(silent), len(places) + len(silent))
    culprits = sorted([*silent, *departed, *(place.rank for place in outside if few_outside)])
    first = next((p for p in places if p.rank in culprits), places[0] if places else None)
    reason = stall_text(stood_s, silent, departed, [*_alike(outside)[:_SHOWN], *_alike(inside)[:_SHOWN]])
    victims = sorted(place.rank for place in inside) if culprits else []
    step, region = (first.step, first.region) if first else (None, None)
    return Verdict("stall", reason, culprits, victims, "", None, step, region, attempt, time_s)


def find_desync(paths: RunPaths, attempt: int, world_size: int, time_s: float) -> Verdict | None:
    """Return the verdict on a proven difference between the rings of an attempt; None if there is none."""
    records = (record for ring in _rings(paths, attempt, range(world_size)) for record in ring.records)
    where = _first_differing(((r.seq, r.group.key), r.signature) for r in records if not r.is_p2p)
    if where is None:
        return None
    position, group = where
    return desync(left_at(paths, attempt, range(world_size), group, position), position, attempt, time_s)


def left_at(paths: RunPaths, attempt: int, ranks: Iterable[int], group: str, position: int) -> list[Called]:
    """Return the ranks' calls around a position of a group, as far as their rings on this host hold them."""
    return [side for ring in _rings(paths, attempt, ranks) if (side := called_at(ring, group, position)) is not None]


def _rings(paths: RunPaths, attempt: int, ranks: Iterable[int]) -> Iterator[RingDump]:
    """Yield one ring after another, so that memory does not grow with the number of ranks."""
    for rank in ranks:
        try:
            ring = RingFile(paths.ring(rank), "", rank, Limits()).read()
        except (OSError, ValueError):
            continue
        if ring.attempt == attempt and ring.sound:
            yield ring


def _alike(places: list[Place]) -> list[list[Place]]:
    of_rank = {place.rank: place for place in places}
    vote = count_votes(OF_JOB, 0, {rank: (place.group, place.call, place.site) for rank, place in of_rank.items()})
    return [[of_rank[rank] for rank in side] for side in vote.sides]


def desync_text(group: str, first_position: int, position: int, sides: Sequence[tuple[Sequence[int], Call]]) -> str:
    """Describe the calls that differ between ranks.

    Ranks diverged at `first_position`, maybe before `position`, where calls differ; `sides` is empty if too long ago.
    """
    if not sides:
        return f"ranks called different collectives at position {position}, too long ago to be still recorded"
    what = "the same collective from different lines" if first_position < position else "different collectives"
    then = f" (their calls differ from position {position} on)" if first_position < position else ""
    calls = "; ".join(f"{ranks_spoken(ranks)} called {call.text} at {site_of(call)}" for ranks, call in sides)
    return f"ranks called {what} at position {first_position} of group {group}{then}: {calls}"


def stall_text(
    stood_s: float, silent: Sequence[int], departed: Mapping[int, str], sides: Sequence[Sequence[Place]]
) -> str:
    """Describe where stalled ranks are.

    `stood_s`: seconds without progress; `departed` ranks -> `failed` or `end`; `sides` are the others, by place.
    """
    clauses = []
    if silent:
        clauses.append(f"{ranks_spoken(silent)} does not answer: it is stopped, or native code holds the GIL")
    for how, words in _DEPARTURES:
        if ranks := sorted(rank for rank in departed if departed[rank] == how):
            clauses.append(f"{ranks_spoken(ranks)} {words} before")
    for side in sides:
        place, s = side[0], "s" if len(side) == 1 else ""
        does = f"wait{s} in {place.call}" if place.call else f"{'is' if s else 'are'}"
        group = f" of group {place.group_name}" if place.group_name else ""
        group = group if place.call else ", outside any recorded collective"
        clauses.append(f"{ranks_spoken([other.rank for other in side])} {does} at {place.site}{group}")
    return f"no progress for {stood_s:.0f} s: {'; '.join(clauses)}"


def site_of(call: Call) -> str:
    """Return `train.py:12 in step`."""
    if call.site is None:
        return "an unknown place"
    within = f" in {call.site.function}" if call.site.function else ""
    return f"{file_name(call.site.file)}:{call.site.line}{within}"


class Report(msgspec.Struct, frozen=True):
    """What a rank publishes at every tick of its watch, as JSON."""

    tick: int = 0
    idle_s: float = 0.0
    """Seconds without progress."""
    stepping: bool = False
    """Whether its first step is over."""
    leaving: str = ""
    """How it left, `failed` or `end`; empty while it participates."""
    sound: bool = True
    """Whether it recorded every call; if not, its hashes prove nothing."""
    groups: dict[str, History] = {}


@dataclass(slots=True)
class Peer:
    """What is known of another rank."""

    raw: bytes = b""
    report: Report = field(default_factory=Report)
    silent_s: float = 0.0


class Judge:
    """One rank's view of all ranks."""

    def __init__(self, world_size: int) -> None:
        self.peers = [Peer() for _ in range(world_size)]
        self._keys = [f"rank/{rank}" for rank in range(world_size)]

    def read(
        self,
        store: "Store",
        elapsed_s: float,
        silent_s: float,
        computes: Callable[[int, float], bool] = lambda *_: False,
    ) -> None:
        """Read the ranks' reports.

        `silent_s` are the seconds for which rank 0 has been silent, on the first call of another rank; `computes`
        returns whether a rank that has been silent for this long is working.
        """
        heard = [bool(peer.raw) for peer in self.peers]
        present = [rank for rank, key in enumerate(self._keys) if all(heard) or store.check([key])]
        answers = dict(zip(present, store.multi_get([self._keys[rank] for rank in present]), strict=True))
        for rank, peer in enumerate(self.peers):
            raw = answers.get(rank, b"")
            before_s = silent_s if rank == 0 and not any(heard) else 0.0
            if raw == peer.raw:
                peer.silent_s = 0.0 if computes(rank, peer.silent_s) else peer.silent_s + (before_s or elapsed_s)
                continue
            peer.silent_s = before_s
            peer.raw = raw
            peer.report = msgspec.json.decode(raw, type=Report)

    def find(self, limit_s: float, first_limit_s: float) -> dict[str, Any] | None:
        """Return the reason to end the run, if there is one: a desync, or a stall of all ranks that have not left.

        They stall if none of them progresses for `limit_s`, or for `first_limit_s` until the first step is over.
        """
        staying = [peer for peer in self.peers if not peer.report.leaving]
        if (desync := self._find_desync()) is not None or not staying:
            return desync
        stood_s = min(peer.report.idle_s + peer.silent_s for peer in staying)
        stepping = any(peer.report.stepping for peer in self.peers)
        return {"kind": "stall", "stood_s": stood_s} if stood_s >= (limit_s if stepping else first_limit_s) else None

    def staying(self) -> list[int]:
        """Return the ranks that are not leaving; some may have stalled before their first report."""
        return [rank for rank, peer in enumerate(self.peers) if not peer.report.leaving]

    def departures(self) -> dict[int, str]:
        """Return the ranks that no longer participate, and how they left: `failed` or `end`."""
        return {rank: peer.report.leaving for rank, peer in enumerate(self.peers) if peer.report.leaving}

    def _find_desync(self) -> dict[str, Any] | None:
        """Return a group in which two ranks called different collectives at one position; None if there is none."""
        if not all(peer.report.sound for peer in self.peers):
            return None
        groups: dict[str, dict[int, History]] = {}
        for rank, peer in enumerate(self.peers):
            for key, history in peer.report.groups.items():
                groups.setdefault(key, {})[rank] = history
        for key in sorted(groups):
            if (position := first_difference(groups[key])) is not None:
                return {"kind": "desync", "group": key, "position": position}
        return None
