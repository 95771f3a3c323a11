"""Matches the calls of all ranks: whether every rank finishes, or where each of them waits.

Assumed of the library, on the side of caution where gloo and NCCL differ:
- The n-th collective of one member of a group matches the n-th of the others. It completes when all members issued it
  with the same operation, amount, dtype, ReduceOp and root, and expect of each other what they send.
- Waiting for a call blocks its rank until the call is complete. (Under NCCL a later synchronization does.)
- A send matches the first receive with its group, both ends and its tag, and waits for it (rendezvous): a small
  one may be buffered, but a program that relies on it hangs with larger ones.
- A rank that exits normally waits for its issued calls; one that raised, was killed or stalled does nothing more.
Each event is processed once, so the work is linear in the calls.

`diagnostics.analysis.divergence` finds from the same programs which ranks' calls differ, and how.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from diagnostics.analysis.divergence.identity import agree
from diagnostics.analysis.pairwise import Misfit, misfits
from diagnostics.contract.findings import Group
from diagnostics.evidence.calls import Wire
from dtk.preflight.calls import Entry, Program, Record

_ANY = -1  # Sender of a receive from any rank.


@dataclass(slots=True)
class RankProgress:
    """Where one rank is when no rank can advance."""

    issued: int
    """Number of issued calls."""
    pending: int | None
    """Number of the call that it waits for; None if it finished."""
    incomplete: tuple[int, ...] = ()
    """Numbers of all its incomplete calls, ascending."""


@dataclass(slots=True)
class Outcome:
    """The result of matching."""

    progress: dict[int, RankProgress] = field(default_factory=dict)
    """Place of every rank if something is incomplete; empty if all finished."""
    events: int = 0
    """Total number of calls and waits of all ranks."""
    misfit: Misfit[int] | None = None
    """The first pair of calls, by their numbers, of which one expects other bytes than the other sends."""

    @property
    def ends(self) -> bool:
        """Whether every rank finished."""
        return not self.progress


@dataclass(slots=True)
class _Operation:
    missing: int
    agreed: Wire | None
    complete: bool = False
    waiting: list[int] = field(default_factory=list)
    members: list[tuple[int, int, Entry]] = field(default_factory=list)
    """Rank and number of each of its calls."""


@dataclass(slots=True)
class _Rank:
    record: Record
    steps: "array[int]"
    at: int = 0
    operations: list[_Operation] = field(default_factory=list)
    """Operations of the calls issued so far, by number."""

    @property
    def ends_waiting(self) -> bool:
        """Whether it exits normally, and so waits for its issued calls."""
        return self.record.end.kind in ("finished", "exited")

    def progress(self) -> RankProgress:
        """Return the rank's current position."""
        incomplete = tuple(number for number, operation in enumerate(self.operations) if not operation.complete)
        pending = None
        if self.at < len(self.steps):
            pending = -1 - self.steps[self.at]
        elif self.at == len(self.steps) and self.ends_waiting and incomplete:
            pending = incomplete[0]
        return RankProgress(len(self.operations), pending, incomplete)


def match(records: Iterable[Record]) -> Outcome:
    """Match the calls of all ranks; if not all finish, the outcome has the call at which each of them waits."""
    ranks = list(records)
    if alike(ranks):
        return Outcome(events=len(ranks) * len(ranks[0].program.events) // 4 if ranks else 0)
    return _Matching(ranks).run()


def alike(records: list[Record]) -> bool:
    """Whether all ranks issue the same calls over groups that are equivalent for each member.

    Then all finish: at every position each member of a group issues the same call to the same group, so by
    induction every call completes. This requires that no call is point-to-point or has parts of several sizes.
    """
    if not records:
        return True
    entries = records[0].program.entries
    if any(entry.p2p or entry.sent != entry.taken or len(entry.sent) > 1 for entry in entries):
        return False
    programs = {id(record.program): record.program for record in records}.values()
    first = _form(records[0].program)
    if any(record.end.kind != "finished" for record in records) or any(_form(program) != first for program in programs):
        return False
    place: dict[Group, int] = {}
    members: Counter[Group] = Counter()
    for record in records:
        members.update(record.groups)
        if any(place.setdefault(group, index) != index for index, group in enumerate(record.groups)):
            return False
    return all(len(group.ranks) == count for group, count in members.items())


def _form(program: Program) -> list[tuple[object, ...]]:
    """Return the part of a program that other ranks can observe, event by event."""
    forms = [(call.group, call.p2p, call.sent, call.taken, call.peer, call.tag, call.wire) for call in program.entries]
    return [forms[event] if event >= 0 else (event,) for event in program.steps()]


class _Matching:
    """Advances every rank until it waits, and wakes ranks whose wait is over."""

    def __init__(self, records: list[Record]) -> None:
        steps = {id(record.program): record.program.steps() for record in records}
        self.ranks = {record.rank: _Rank(record, steps[id(record.program)]) for record in records}
        self.positions: Counter[tuple[int, Group]] = Counter()
        """(rank, group) -> number of collectives issued there."""
        self.operations: dict[tuple[Group, int], _Operation] = {}
        self.dead: set[Group] = set()
        """Groups in which members issued different calls, so that these and later calls never complete."""
        self.misfit: Misfit[int] | None = None
        self.posted: dict[tuple[Group, int, int], list[tuple[Entry, _Operation]]] = {}
        """(group, sender, receiver) by rank in the group (_ANY = any) -> unmatched sends or receives."""
        self.ready: deque[int] = deque(self.ranks)

    def run(self) -> Outcome:
        """Advance all ranks until they finish or none can advance."""
        while self.ready:
            self._advance(self.ranks[self.ready.popleft()])
        events = sum(len(rank.steps) for rank in self.ranks.values())
        if all(rank.at > len(rank.steps) for rank in self.ranks.values()):
            return Outcome(events=events)
        return Outcome({number: rank.progress() for number, rank in self.ranks.items()}, events, self.misfit)

    def _advance(self, rank: _Rank) -> None:
        steps = rank.steps
        while rank.at < len(steps):
            event = steps[rank.at]
            if event >= 0:
                self._issue(rank, event)
            elif not rank.operations[-1 - event].complete:
                rank.operations[-1 - event].waiting.append(rank.record.rank)
                return
            rank.at += 1
        for operation in rank.operations if rank.ends_waiting else ():
            if not operation.complete:
                operation.waiting.append(rank.record.rank)
                return
        rank.at = len(steps) + 1

    def _issue(self, rank: _Rank, index: int) -> None:
        number, entry = rank.record.rank, rank.record.program.entries[index]
        group = rank.record.groups[entry.group]
        if entry.p2p:
            rank.operations.append(self._post(rank, entry, group))
            return
        self.positions[number, group] += 1
        position = self.positions[number, group]
        operation = self.operations.setdefault((group, position), _Operation(len(group.ranks), entry.wire))
        if operation.agreed is not None and not agree(operation.agreed, entry.wire):
            self.dead.add(group)
        operation.missing -= 1
        operation.members.append((number, len(rank.operations), entry))
        rank.operations.append(operation)
        if not operation.missing:
            del self.operations[group, position]
            if group not in self.dead and self._fits(operation, group):
                self._complete(operation)
            operation.members.clear()

    def _fits(self, operation: _Operation, group: Group) -> bool:
        """Whether every member sends what the others expect; if not, notes the first that does not."""
        members = operation.members
        kinds = {(entry.sent, entry.taken) for _, _, entry in members}
        if len(kinds) == 1 and all(sent == taken and len(sent) < 2 for sent, taken in kinds):
            return True
        sides = {rank: (entry.sent, entry.taken, number) for rank, number, entry in members}
        first = next(misfits(sides, group.ranks, members[0][2].wire.root), None)
        if first is not None:
            self.misfit = self.misfit or first
            self.dead.add(group)
        return first is None

    def _post(self, rank: _Rank, entry: Entry, group: Group) -> _Operation:
        """Post a send or a receive, which is complete once its other half is posted."""
        me = group.ranks.index(rank.record.rank)
        call = (rank.record.rank, len(rank.operations), entry)
        peer = _ANY if entry.peer is None else entry.peer
        sends = entry.p2p == "send"
        pair = (me, peer) if sends else (peer, me)
        others = [pair] if _ANY not in pair else [(other, me) for other in range(len(group.ranks))]
        if sends:
            others.append((_ANY, peer))
        for sender, receiver in others:
            halves = self.posted.get((group, sender, receiver), [])
            for at, (half, operation) in enumerate(halves):
                if half.p2p != entry.p2p and half.tag == entry.tag:
                    del halves[at]
                    if half.sent + half.taken != entry.sent + entry.taken:
                        send, receive = (call, operation.members[0]) if sends else (operation.members[0], call)
                        lengths = sum(send[2].sent), sum(receive[2].taken)
                        misfit = Misfit(send[0], receive[0], *lengths, (send[1], receive[1]))
                        self.misfit = self.misfit or misfit
                        return _Operation(1, None)
                    self._complete(operation)
                    return operation
        operation = _Operation(1, None, members=[call])
        self.posted.setdefault((group, *pair), []).append((entry, operation))
        return operation

    def _complete(self, operation: _Operation) -> None:
        operation.complete = True
        self.ready.extend(operation.waiting)
        operation.waiting.clear()
