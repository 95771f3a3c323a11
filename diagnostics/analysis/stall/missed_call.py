"""A cycle of waits over two groups that is not about their order: a rank skipped one of its calls, as the rounds show.
Ranks that merely use two groups in opposite orders do so from other lines.

`divergence` compares what ranks called at one position of one group. Here the positions agree as far as they go, and
the order over two groups is in question; what the same call is, `divergence.identity` says for both.
"""

from collections.abc import Sequence
from itertools import permutations

from msgspec import Struct

from diagnostics.analysis.divergence.explanation import program_order
from diagnostics.analysis.divergence.identity import in_group
from diagnostics.analysis.divergence.loop_exit import for_one_rank, in_branch, source_branches
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Cycle, Operation
from diagnostics.evidence.calls import Call

_LONGEST = 2048  # Calls before the cycle that are compared: torch's recorder keeps 2,000 by default.
_Ways = Sequence[tuple[Operation, ...]]  # The two operations of a cycle, in either order.


class MissedCall(Struct, frozen=True):
    """Ranks that wait in `here` although they should have made the call `there` first."""

    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    """Ranks that wait in `there`."""
    here: Call
    there: Call
    majority: int | None = None
    """How many more ranks wait in `there` than omitted it, negative if fewer do; None if one line alone shows that it
    was omitted. `divergence.same_role` compares ranks of other groups."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The minority: the ranks that omitted the call or those that made it; all ranks if there is a tie."""
        if self.majority is None or self.majority > 0:
            return self.ranks
        return self.peers if self.majority < 0 else tuple(sorted((*self.ranks, *self.peers)))


def find(job: JobState, cycle: Cycle) -> MissedCall | None:
    """Return the call that ranks of the cycle skipped, or None if the calls do not show one."""
    for recorder in sorted({operation.key.recorder for operation in cycle.operations}, key=lambda name: name == "dtk"):
        operations = [operation for operation in cycle.operations if operation.key.recorder == recorder]
        for missed in operations:
            if (by_rounds := _by_rounds(job, cycle, operations, missed)) is not None:
                return by_rounds
    both_ways = list(permutations(cycle.operations)) if len(cycle.operations) == 2 else []
    return _by_program(job, cycle, both_ways) or _for_one_rank(job, cycle, both_ways)


def _for_one_rank(job: JobState, cycle: Cycle, both_ways: _Ways) -> MissedCall | None:
    """Find a call that the program's text gives to one rank, while its peers are in a call outside any branch."""
    for mine, other in both_ways:
        ranks, peers = (tuple(r for r in job.waits.waiting[at] if r in cycle.ranks) for at in (mine, other))
        if not ranks or not peers or set(ranks) & set(peers):
            continue
        here, there = job.waits.calls[ranks[0], mine], job.waits.calls[peers[0], other]
        if for_one_rank(there, here) and not (in_branch(here, there) or source_branches(here, there)):
            return MissedCall(ranks, peers, here, there, min(len(peers) - len(ranks), -1))
    return None


def _by_program(job: JobState, cycle: Cycle, both_ways: _Ways) -> MissedCall | None:
    """Find a rank past a peer's call in program order, at a line on the common path: other ranks call from it too."""
    waits = job.waits
    for mine, other in both_ways:
        peers = tuple(peer for peer in waits.waiting[other] if peer in cycle.ranks)
        there = waits.calls[peers[0], other] if peers else None
        for rank in cycle.ranks:
            here = waits.calls.get((rank, mine))
            if here is None or there is None or not here.site or rank in peers or rank not in waits.absent[other]:
                continue
            same = [who for who in waits.waiting[mine] if waits.calls[who, mine].site == here.site]
            in_order = program_order(here.stack, there.stack) > 0 and not source_branches(here, there)
            if len(same) > 1 and in_order:
                ranks = tuple(who for who in same if who in cycle.ranks and who in waits.absent[other])
                return MissedCall(ranks, peers, here, there, len(peers) - len(ranks) if len(ranks) > 1 else None)
    return None


def _by_rounds(job: JobState, cycle: Cycle, operations: list[Operation], missed: Operation) -> MissedCall | None:
    """Find whether every rank that `missed` waits for, and that waits elsewhere in the cycle, went past it."""
    waits = job.waits
    peers = tuple(rank for rank in waits.waiting[missed] if rank in cycle.ranks)
    ranks: list[int] = []
    first: tuple[Call, Call] | None = None
    for rank in waits.absent[missed]:
        here = next((other for other in operations if other != missed and rank in waits.waiting[other]), None)
        if here is None:
            continue
        peer = next((other for other in peers if other in waits.absent[here]), None)
        if peer is None or not _went_past(job, rank, peer, here, missed):
            return None
        first = first or (waits.calls[rank, here], waits.calls[peer, missed])
        ranks.append(rank)
    if first is None:
        return None
    waiting = tuple(waits.waiting[missed])
    return MissedCall(tuple(ranks), waiting, *first, len(waiting) - len(ranks))


def _went_past(job: JobState, rank: int, peer: int, here: Operation, missed: Operation) -> bool:
    """Return whether both made equal calls up to the cycle, then the peer the next one, the rank a later one."""
    path, peer_path = (_path(job, own, here, {rank, peer}) for own in (rank, peer))
    mine, other = job.waits.calls[rank, here], job.waits.calls[peer, missed]
    if not mine.stack or not other.stack or mine.stack == other.stack:
        return False
    if not path or not peer_path or in_group(path[-1]) != in_group(mine) or in_group(peer_path[-1]) != in_group(other):
        return False
    if len(path) == len(peer_path) and mine.step is not None and other.step is not None and mine.step > other.step:
        return True
    before, common = [in_group(call) for call in path[:-1]], [in_group(call) for call in peer_path[:-1]]
    size = min(len(before), len(common))
    if not size or before[-size:] != common[-size:]:
        return False
    past = before[-size:]
    # After the last call, when it was made the time before, the peer's call came and the rank's own only behind it.
    again = next((at for at in range(size - 2, -1, -1) if past[at] == past[-1]), None)
    if again is None or past[again + 1] != in_group(other) or in_group(mine) not in past[again + 1 :]:
        return False
    # A swap of the two calls shows in the stacks. Where only the innermost line was recorded, a caller may use two
    # functions in another order unseen, unless `mine` is known to open the next round.
    if len(mine.stack) > 1 or mine.stack[0].function == other.stack[0].function:
        return True
    complete = path[0].seq == 1 and in_group(mine) in before and in_group(other) in before
    return complete and before.index(in_group(mine)) < before.index(in_group(other))


def _path(job: JobState, rank: int, here: Operation, together: set[int]) -> list[Call]:
    """Return a rank's calls up to the first incomplete one, in groups of `here`'s recorder used by `together`."""
    groups = sorted(job.survey.groups.items())
    keys = [key for key, table in groups if key.recorder == here.key.recorder and together <= set(table.lines)]
    calls = [call for key in keys for call in job.reading.calls(rank, key)]
    calls.sort(key=lambda call: call.created_s or 0.0)
    waits = {(operation.key, operation.seq) for operation in job.waits.of_rank.get(rank, []) if operation.peer < 0}
    end = next((at for at, call in enumerate(calls) if (call.key, call.seq) in waits), len(calls) - 1)
    return calls[max(0, end + 1 - _LONGEST) : end + 1]
