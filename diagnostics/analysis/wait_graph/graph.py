"""Who waits for whom: ranks wait in operations, operations wait for the ranks that did not reach them.

The graph has a node for each pending operation rather than an edge for each pair of ranks, so it stays
linear in the ranks. Roots are ranks that others wait for and that wait for nobody. Knows no cause.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnostics.analysis.divergence.explanation import program_order
from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.evidence.calls import Call, GroupKey


class Operation(NamedTuple):
    """A collective at one position, or what one rank waits for from a peer (seq = -1 - rank)."""

    key: GroupKey
    seq: int
    peer: int = -1


@dataclass(frozen=True, slots=True)
class Cycle:
    """Ranks of which each waits for another one of them."""

    ranks: tuple[int, ...]
    operations: tuple[Operation, ...]


@dataclass(slots=True)
class WaitGraph:
    """The wait-for graph at the moment of the dumps."""

    waiting: dict[Operation, list[int]] = field(default_factory=dict)
    """Operation -> ranks that wait in it, ascending."""
    absent: dict[Operation, tuple[int, ...]] = field(default_factory=dict)
    """Operation -> ranks that did not reach it."""
    complete: dict[Operation, list[int]] = field(default_factory=dict)
    """Operation -> members on which it completed."""
    unknown: set[int] = field(default_factory=set)
    """Ranks that wait for somebody whom the dumps do not name."""
    assumed: set[int] = field(default_factory=set)
    """Ranks without a dump that are taken not to be in a group of which nobody names the members."""
    calls: dict[tuple[int, Operation], Call] = field(default_factory=dict)
    of_rank: dict[int, list[Operation]] = field(default_factory=dict)

    def waited_for(self) -> set[int]:
        """Ranks that somebody waits for."""
        return {rank for ranks in self.absent.values() for rank in ranks}

    def blockers(self, rank: int) -> list[Operation]:
        """Return the operations that a rank waits in and that other ranks have not reached."""
        return [operation for operation in self.of_rank.get(rank, []) if self.absent.get(operation)]

    def roots(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody themselves."""
        return tuple(sorted(rank for rank in self.waited_for() if not self.blockers(rank) and rank not in self.unknown))

    def reaching(self, roots: Iterable[int]) -> set[int]:
        """Ranks that wait, directly or through others, for one of `roots`."""
        blocked_by: dict[int, list[Operation]] = {}
        for operation, ranks in self.absent.items():
            for rank in ranks:
                blocked_by.setdefault(rank, []).append(operation)
        seen: set[int] = set()
        seen_operations: set[Operation] = set()
        todo = list(roots)
        while todo:
            for operation in blocked_by.get(todo.pop(), []):
                if operation not in seen_operations:
                    seen_operations.add(operation)
                    fresh = [rank for rank in self.waiting[operation] if rank not in seen]
                    seen.update(fresh)
                    todo.extend(fresh)
        return seen

    def cycles(self) -> list[Cycle]:
        """Circles of ranks that wait for each other, smallest rank first; one for each knot."""
        names: dict[Operation, int] = {}
        edges: dict[int, list[int]] = {}
        for operation, absent in self.absent.items():
            if not absent:
                continue
            node = names[operation] = -1 - len(names)
            edges[node] = list(absent)
            for rank in self.waiting[operation]:
                edges.setdefault(rank, []).append(node)
        of_node = {node: operation for operation, node in names.items()}
        found = []
        for knot in _knots(edges):
            ranks = sorted(node for node in knot if node >= 0)
            operations = sorted(of_node[node] for node in knot if node < 0)
            if len(ranks) > 1:
                found.append(Cycle(tuple(ranks), tuple(operations)))
        return sorted(found, key=lambda cycle: cycle.ranks)


def build(survey: Survey) -> WaitGraph:
    """Return the graph of all pending collectives, sends and receives."""
    waits = WaitGraph()
    for rank in sorted(survey.ranks):
        for key, line in sorted(survey.ranks[rank].lines.items()):
            if line.pending is not None:
                _wait(waits, rank, Operation(key, line.pending.seq), line.pending)
    for operation in waits.waiting:
        _absent(survey, waits, operation)
    _point_to_point(survey, waits)
    return waits


def _wait(waits: WaitGraph, rank: int, operation: Operation, call: Call) -> None:
    waits.waiting.setdefault(operation, []).append(rank)
    waits.of_rank.setdefault(rank, []).append(operation)
    waits.calls[rank, operation] = call


def _absent(survey: Survey, waits: WaitGraph, operation: Operation) -> None:
    table = survey.groups[operation.key]
    members = survey.members(operation.key)
    if not survey.membership_known(operation.key):
        members = _with_silent_members(survey, waits, operation, members)
    absent, complete = [], []
    for rank in members:
        line = table.lines.get(rank)
        if line is None:
            if rank in survey.ranks or len(members) > 1:
                absent.append(rank)
        elif line.issued < operation.seq:
            absent.append(rank)
        elif line.pending is None or line.pending.seq > operation.seq:
            complete.append(rank)
    waits.absent[operation] = tuple(absent)
    waits.complete[operation] = complete


def _with_silent_members(
    survey: Survey, waits: WaitGraph, operation: Operation, seen: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the members of a group whose ranks were not recorded.

    A rank that is alone in such a group waits for a member that never came, and so do all that were seen in it if they
    are in the same call and gloo completes it on none.

    Gloo's dumps say which ranks never joined a group; if that leaves one candidate, it is the other member.
    """
    if len(seen) > 1 and not _all_wait_alike(survey, operation, seen):
        return seen
    candidates = [
        rank
        for rank in range(survey.world())
        if rank not in seen and (rank not in survey.ranks or survey.ranks[rank].can_be_in(operation.key.name))
    ]
    if len(candidates) > 1:
        lost = {rank for rank in candidates if rank not in survey.ranks}
        there = [rank for rank in candidates if rank not in lost]
        if len(there) == 1 and len(seen) == 1 and _joined(survey, operation, seen[0], there[0]):
            waits.assumed |= lost
            candidates = there
    if len(candidates) == 1:
        survey.inferred[operation.key] = tuple(sorted((*seen, *candidates)))
        return survey.inferred[operation.key]
    if len(seen) == 1:
        waits.unknown.update(waits.waiting[operation])
    return seen


def _all_wait_alike(survey: Survey, operation: Operation, seen: tuple[int, ...]) -> bool:
    """Whether all ranks that were seen in a group of gloo's wait in one call, which then lacks a further member."""
    table = survey.groups[operation.key]
    pending = [table.lines[rank].pending for rank in seen if rank in table.lines]
    here = [call for call in pending if call is not None and call.seq == operation.seq]
    alike = len(table.issued_at(operation.seq)) == 1
    return operation.key.recorder == "gloo" and alike and len(here) == len(seen)


def _joined(survey: Survey, operation: Operation, waiter: int, other: int) -> bool:
    """Whether `other` is in the group of `operation` rather than a rank without a dump, as far as gloo's dumps show.

    They say that it joined a group besides the default one. Either it used none, so that this one explains it; or
    the two wait in one group each, both come in question for the other's, and who waits in the later group has
    passed the line of the earlier one.
    """
    if "gloo" not in survey.ranks[other].recorders:
        return False
    own = {line.pending.key: line.pending for line in survey.ranks[other].lines.values() if line.pending is not None}
    used = [key for key in survey.ranks[other].lines if not survey.membership_known(key)]
    mine = survey.ranks[waiter].lines[operation.key].pending
    if not used:
        return True
    if len(used) != 1 or mine is None or used[0] not in own or tuple(survey.groups[used[0]].lines) != (other,):
        return False
    theirs = own[used[0]]
    if not (mine.key.name.isdecimal() and theirs.key.name.isdecimal()):
        return False
    early, late = sorted((mine, theirs), key=lambda call: int(call.key.name))
    return survey.ranks[waiter].can_be_in(theirs.key.name) and program_order(late.stack, early.stack) > 0


def _point_to_point(survey: Survey, waits: WaitGraph) -> None:
    """Add the oldest pending sends and receives of each rank whose peer has not posted the other half."""
    for rank in sorted(survey.ranks):
        pending = survey.ranks[rank].p2p
        if not pending:
            continue
        heads = [call for call in pending if call.seq == pending[0].seq and call.key == pending[0].key]
        for call in heads if len(heads) > 1 else pending[:1]:
            if call.peer is None:
                waits.unknown.add(rank)
                continue
            operation = Operation(call.key, -1 - rank, call.peer)
            _wait(waits, rank, operation, call)
            waits.absent[operation] = () if _answered(survey, rank, call) else (call.peer,)
            waits.complete[operation] = []


def _answered(survey: Survey, rank: int, call: Call) -> bool:
    """Whether the peer has posted the other half, and nothing of its own stands before it."""
    peer = survey.ranks.get(call.peer) if call.peer is not None else None
    if peer is None:
        return False
    wanted = "recv" if call.p2p == "send" else "send"
    halves = [
        one
        for one in peer.p2p
        if one.key == call.key and one.p2p == wanted and one.peer in {rank, None} and same_tag(one, call)
    ]
    if call.key.recorder != SNAPSHOTS and len(survey.members(call.key)) == 2:
        # Both ranks of a pair count its sends and receives alike.
        return peer.p2p_done.get(call.key, 0) >= call.seq or any(one.seq == call.seq for one in halves)
    alike = (call.key, call.p2p, call.peer)
    own = [one for one in survey.ranks[rank].p2p if (one.key, one.p2p, one.peer) == alike]
    ours = [one for one in own if same_tag(one, call)]
    if not halves or len(ours) > len(halves):
        return False
    first = peer.p2p[0]
    return first.key != call.key or first.seq == halves[0].seq or first.peer == rank


def same_tag(one: Call, other: Call) -> bool:
    """Whether two halves can meet, as far as tags were recorded."""
    return one.tag is None or other.tag is None or one.tag == other.tag


def _knots(edges: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components of more than one node (Tarjan 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(edges.get(start, ())))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(edges.get(after, ()))))
                    break
                if after in on_stack:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    knot = _pop(stack, on_stack, node)
                    if len(knot) > 1:
                        found.append(knot)
    return found


def _pop(stack: list[int], on_stack: set[int], until: int) -> list[int]:
    knot = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        knot.append(node)
        if node == until:
            return knot
