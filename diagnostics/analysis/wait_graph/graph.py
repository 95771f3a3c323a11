"""The wait-for graph: ranks wait in operations, operations wait for the ranks that did not reach them. One node per
pending operation instead of one edge per pair of ranks keeps it linear in the number of ranks.
"""

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct, field

from diagnostics.analysis.divergence.explanation import program_order
from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import MAX_P2P, SNAPSHOTS
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call, GroupKey


class Operation(NamedTuple):
    """A collective at one position, or a wait of one rank for a peer's send or receive (seq = -1 - rank)."""

    key: GroupKey
    seq: int
    peer: int = -1


class Cycle(Struct, frozen=True):
    """A strongly connected component of the graph: ranks that wait for each other, and the operations between them."""

    ranks: tuple[int, ...]
    operations: tuple[Operation, ...]


class WaitGraph(Struct):
    """The wait-for graph at the time of the dumps."""

    waiting: dict[Operation, list[int]] = field(default_factory=dict)
    """Operation -> ranks that wait in it, ascending."""
    absent: dict[Operation, tuple[int, ...]] = field(default_factory=dict)
    """Operation -> ranks that did not reach it."""
    complete: dict[Operation, list[int]] = field(default_factory=dict)
    """Operation -> members on which it completed."""
    unknown: set[int] = field(default_factory=set)
    """Ranks that wait for a rank not named in the dumps."""
    assumed: set[int] = field(default_factory=set)
    """Ranks without a dump that are assumed not to be in a group without recorded members."""
    differing: set[int] = field(default_factory=set)
    """Members of groups whose calls differ, so that a position there is not one operation of all ranks."""
    calls: dict[tuple[int, Operation], Call] = field(default_factory=dict)
    halves: dict[Operation, set[str]] = field(default_factory=dict)
    """Wait for a peer -> `send`, `recv`, or both if they were posted together."""
    of_rank: dict[int, list[Operation]] = field(default_factory=dict)

    def add(self, rank: int, operation: Operation, call: Call) -> None:
        """Add the wait of a rank; ranks are added in ascending order."""
        self.waiting.setdefault(operation, []).append(rank)
        self.of_rank.setdefault(rank, []).append(operation)
        self.calls[rank, operation] = call

    def participants(self, operation: Operation) -> dict[int, Operation]:
        """Return the ranks that wait in a collective, or both ranks of a message, and the wait of each.

        A message has none unless both ranks posted their half, and each waits in it before all else.
        """
        if operation.peer < 0:
            return dict.fromkeys(self.waiting[operation], operation)
        rank = -1 - operation.seq
        other = Operation(operation.key, -1 - operation.peer, rank)
        if other not in self.waiting or self.absent[operation] or self.absent[other]:
            return {}
        is_met = {"send", "recv"} <= self.halves[operation] | self.halves[other]
        return dict(sorted({rank: operation, operation.peer: other}.items())) if is_met else {}

    def waited_for(self) -> set[int]:
        """Return the ranks that others wait for."""
        return {rank for ranks in self.absent.values() for rank in ranks}

    def blockers(self, rank: int) -> list[Operation]:
        """Return the operations that a rank waits in and that other ranks have not reached."""
        return [operation for operation in self.of_rank.get(rank, []) if self.absent.get(operation)]

    def roots(self) -> tuple[int, ...]:
        """Return the ranks that others wait for and that wait for no rank themselves."""
        return tuple(sorted(rank for rank in self.waited_for() if not self.blockers(rank) and rank not in self.unknown))

    def reaching(self, roots: Iterable[int]) -> set[int]:
        """Return the ranks that wait, directly or through others, for one of `roots`."""
        blocked_by = grouped((rank, operation) for operation, ranks in self.absent.items() for rank in ranks)
        reached: set[int] = set()
        seen_operations: set[Operation] = set()
        todo = list(roots)
        while todo:
            for operation in blocked_by.get(todo.pop(), []):
                if operation not in seen_operations:
                    seen_operations.add(operation)
                    fresh = [rank for rank in self.waiting[operation] if rank not in reached]
                    reached.update(fresh)
                    todo.extend(fresh)
        return reached

    def incomparable(self) -> set[int]:
        """Return the ranks whose waits show neither that a rank or a device is late nor that the network fails."""
        return self.differing | self.reaching(self.differing)

    def cycles(self) -> list[Cycle]:
        """Return the strongly connected components of ranks that wait for each other, smallest rank first."""
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
        cycles = []
        for component in _components(edges):
            ranks = tuple(sorted(node for node in component if node >= 0))
            operations = tuple(sorted(of_node[node] for node in component if node < 0))
            cycles += [Cycle(ranks, operations)] if len(ranks) > 1 else []
        return sorted(cycles, key=lambda cycle: cycle.ranks)


def build(survey: Survey, aborted: Collection[int | None] = ()) -> WaitGraph:
    """Return the graph of all pending calls; `aborted` ranks ended at a call that did not match (None = any rank)."""
    waits = WaitGraph()
    for rank in sorted(survey.ranks):
        for key, line in sorted(survey.ranks[rank].lines.items()):
            if line.pending is not None:
                waits.add(rank, Operation(key, line.pending.seq), line.pending)
    for operation in waits.waiting:
        _absent(survey, waits, operation)
    _point_to_point(survey, waits)
    for key, table in survey.groups.items():
        members = survey.members(key)
        is_apart = any(len(table.issued_at(at)) > 1 for at in table.deviations)
        if is_apart or None in aborted or not set(members).isdisjoint(aborted):
            waits.differing.update(members)
    return waits


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
        elif line.done >= operation.seq or (line.pending is None and line.first <= operation.seq):
            complete.append(rank)  # A ring that begins later does not show that what it lost had completed.
    waits.absent[operation] = tuple(absent)
    waits.complete[operation] = complete


def _with_silent_members(
    survey: Survey, waits: WaitGraph, operation: Operation, seen: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the members of a group with unrecorded ranks: those `seen`, plus the only remaining candidate."""
    if len(seen) > 1:
        table = survey.groups[operation.key]
        pending = [table.lines[rank].pending for rank in seen if rank in table.lines]
        in_call = sum(call is not None and call.seq == operation.seq for call in pending)
        is_same = len(table.issued_at(operation.seq)) == 1
        if operation.key.recorder != "gloo" or not is_same or in_call < len(seen):
            return seen
    ranks, name = survey.ranks, operation.key.name
    others = (rank for rank in range(survey.world()) if rank not in seen)
    candidates = [rank for rank in others if rank not in ranks or ranks[rank].can_be_in(name)]
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


def _joined(survey: Survey, operation: Operation, waiter: int, other: int) -> bool:
    """Return whether gloo's dumps place `other`, not a rank without a dump, in the group of `operation`."""
    if "gloo" not in survey.ranks[other].recorders:
        return False
    own = {line.pending.key: line.pending for line in survey.ranks[other].lines.values() if line.pending is not None}
    used = [key for key in survey.ranks[other].lines if not survey.membership_known(key)]
    waiter_call = survey.ranks[waiter].lines[operation.key].pending
    if not used:
        return True
    if len(used) != 1 or waiter_call is None or used[0] not in own or tuple(survey.groups[used[0]].lines) != (other,):
        return False
    joined_call = own[used[0]]
    if not (waiter_call.key.name.isdecimal() and joined_call.key.name.isdecimal()):
        return False
    early, late = sorted((waiter_call, joined_call), key=lambda call: int(call.key.name))
    return survey.ranks[waiter].can_be_in(joined_call.key.name) and program_order(late.stack, early.stack) > 0


def _point_to_point(survey: Survey, waits: WaitGraph) -> None:
    """Add the oldest pending sends and receives of each rank whose peer has not posted the counterpart."""
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
            waits.add(rank, operation, call)
            waits.halves.setdefault(operation, set()).add(call.p2p)
            waits.absent[operation] = () if _answered(survey, rank, call) else (call.peer,)
            waits.complete[operation] = []


def _answered(survey: Survey, rank: int, call: Call) -> bool:
    """Return whether the peer has posted the counterpart and has no pending call of its own before it."""
    peer = survey.ranks.get(call.peer) if call.peer is not None else None
    if peer is None:
        return False
    other_half = "recv" if call.p2p == "send" else "send"
    peer_calls = [other for other in peer.p2p if (other.key, other.p2p) == (call.key, other_half)]
    halves = [other for other in peer_calls if other.peer in {rank, None} and same_tag(other, call)]
    if call.key.recorder != SNAPSHOTS and len(survey.members(call.key)) == 2:
        # Both ranks of a pair count its sends and receives identically.
        return peer.p2p_done.get(call.key, 0) >= call.seq or any(other.seq == call.seq for other in halves)
    alike, record = (call.key, call.p2p, call.peer), survey.ranks[rank]
    if max(len(record.p2p), len(peer.p2p)) >= MAX_P2P:  # Later ones were not kept.
        return record.posted[alike] <= peer.posted.get((call.key, other_half, rank), 0)
    own = [other for other in record.p2p if (other.key, other.p2p, other.peer) == alike]
    if not halves or sum(same_tag(other, call) for other in own) > len(halves):
        return False
    first = peer.p2p[0]
    return first.key != call.key or first.seq == halves[0].seq or first.peer == rank


def same_tag(first: Call, second: Call) -> bool:
    """Return whether two halves can match, as far as tags were recorded."""
    return first.tag is None or second.tag is None or first.tag == second.tag


def _components(edges: dict[int, list[int]]) -> list[list[int]]:
    """Return the strongly connected components of more than one node (Tarjan 1972), without recursion."""
    index: dict[int | None, int] = {None: -1}
    low: dict[int | None, int] = {None: -1}
    stack: list[int] = []
    components: list[list[int]] = []
    work: list[tuple[int | None, Iterator[int]]] = [(None, iter(edges))]  # None leads to every node.
    while work:
        node, rest = work[-1]
        for after in rest:
            if after not in index:
                index[after] = low[after] = len(index)
                stack.append(after)
                work.append((after, iter(edges.get(after, ()))))
                break
            low[node] = min(low[node], index[after])
        else:
            work.pop()
            if node is None:
                break
            parent = work[-1][0]
            low[parent] = min(low[parent], low[node])
            if low[node] == index[node]:
                component = [stack.pop()]
                while component[-1] != node:
                    component.append(stack.pop())
                index |= dict.fromkeys(component, sys.maxsize)  # Nothing leads back from here.
                components += [component] if len(component) > 1 else []
    return components
