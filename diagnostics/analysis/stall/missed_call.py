"""A cycle of waits over two groups that is not about their order: the program's text shows that a rank skipped a call.
Where loops have run before, `divergence.same_role` compares the calls of their rounds first.
"""

from collections.abc import Sequence
from itertools import permutations

from diagnostics.analysis.divergence.explanation import program_order
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.loop_exit import for_one_rank, in_branch, source_branches
from diagnostics.analysis.divergence.single_calls import passed
from diagnostics.analysis.divergence.vote import count_votes, settled
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Cycle, Operation

_Ways = Sequence[tuple[Operation, ...]]  # The two operations of a cycle, in either order.


def find(job: JobState, cycle: Cycle) -> Divergence | None:
    """Return the call that ranks of the cycle skipped, or None if the calls do not show one."""
    both_ways = list(permutations(cycle.operations)) if len(cycle.operations) == 2 else []
    return _by_program(job, cycle, both_ways) or _for_one_rank(job, cycle, both_ways)


def _for_one_rank(job: JobState, cycle: Cycle, both_ways: _Ways) -> Divergence | None:
    """Find a call that the program's text gives to one rank, while its peers are in a call outside any branch."""
    for current, missed in both_ways:
        ranks, peers = (tuple(r for r in job.waits.waiting[at] if r in cycle.ranks) for at in (current, missed))
        if not ranks or not peers or set(ranks) & set(peers):
            continue
        pending, expected = job.waits.calls[ranks[0], current], job.waits.calls[peers[0], missed]
        if for_one_rank(expected, pending) and not (in_branch(pending, expected) or source_branches(pending, expected)):
            return passed(settled((expected.key, expected.seq), ranks, peers), ranks, expected, pending)
    return None


def _by_program(job: JobState, cycle: Cycle, both_ways: _Ways) -> Divergence | None:
    """Find a rank past a peer's call in program order, at a line on the common path: other ranks call from it too."""
    waits = job.waits
    for current, missed in both_ways:
        peers = tuple(peer for peer in waits.waiting[missed] if peer in cycle.ranks)
        expected = waits.calls[peers[0], missed] if peers else None
        for rank in cycle.ranks:
            pending = waits.calls.get((rank, current))
            if pending is None or expected is None or not pending.site:
                continue
            if rank in peers or rank not in waits.absent[missed]:
                continue
            same = [waiter for waiter in waits.waiting[current] if waits.calls[waiter, current].site == pending.site]
            in_order = program_order(pending.stack, expected.stack) > 0 and not source_branches(pending, expected)
            if len(same) > 1 and in_order:
                ranks = tuple(waiter for waiter in same if waiter in cycle.ranks and waiter in waits.absent[missed])
                at = expected.key, expected.seq  # Of one rank alone, its line shows what it left out.
                sides = {"waiting": peers, "past": ranks}
                vote = count_votes(*at, sides) if len(ranks) > 1 else settled(at, peers, ranks)
                return passed(vote, ranks, expected, pending)
    return None
