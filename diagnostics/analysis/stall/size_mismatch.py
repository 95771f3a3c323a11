"""Processes that gloo ended because sizes did not fit: they leave no dump, but their rings show which call they made.
Where no peer made that call and the peers are in DDP's backward pass, which rings do not record, the two met.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diagnostics.analysis.divergence.find import Divergence, Vote
from diagnostics.analysis.divergence.identity import agree, at_line, in_backward
from diagnostics.analysis.divergence.single_calls import outside_backward
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact


@dataclass(frozen=True, slots=True)
class SizesDiffer:
    """Ranks brought different sizes to one collective, as gloo or torch itself printed."""

    facts: tuple[LogFact, ...]
    divergence: Divergence | None
    """The calls that met; None where no ring shows them."""

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that printed it: those that met the wrong size, not those that brought it."""
        return tuple(sorted({fact.rank for fact in self.facts if fact.rank is not None}))


def sizes_differ(job: JobState) -> SizesDiffer | None:
    """Find the calls that met where a process ended because sizes did not fit; None where no log says so."""
    facts = [fact for fact in job.evidence.facts if fact.kind == "gloo_mismatch"]
    if not facts:
        return None
    divergences = list(_divergences(job, {fact.rank for fact in facts}))
    return SizesDiffer(tuple(facts), divergences[0] if len(divergences) == 1 else None)


def _divergences(job: JobState, ended: set[int | None]) -> Iterator[Divergence]:
    """Ranks in a call that nobody else made before gloo ended a process, against peers in the backward pass."""
    for operation in sorted(job.waits.waiting):
        if operation.key.recorder != SNAPSHOTS or operation.peer >= 0:
            continue
        ranks, peers, swallowed = _sides(job, operation, ended)
        if not peers or len(ranks) > len(peers):
            continue
        minority = job.waits.calls[ranks[0], operation]
        inside = {rank: call for rank in peers if (call := _reduces(job, rank, operation, minority)) is not None}
        before = {at_line(call) for call in job.reading.calls(ranks[0], operation.key) if call.seq < minority.seq}
        # A call of the loop tells nothing: the rank may have left backward without a bucket.
        if len({call.site for call in inside.values()}) != 1 or at_line(minority) in before:
            continue
        first, majority = min(inside.items())
        others = (first, *(peer for peer in peers if peer != first))  # Who is known to be in backward speaks for all.
        vote = Vote(operation.key, operation.seq, (others, tuple(ranks)))
        divergence = outside_backward(vote, majority, minority, came_later=swallowed)
        if divergence is not None:
            yield divergence


def _sides(job: JobState, operation: Operation, ended: set[int | None]) -> tuple[list[int], list[int], bool]:
    """Ranks in the call, ranks elsewhere, and whether these came to it later, as those that swallow the error do."""
    waits = job.waits
    ranks, peers = waits.waiting[operation], list(waits.absent[operation])
    if not peers and ended & set(ranks):
        return [rank for rank in ranks if rank in ended], [rank for rank in ranks if rank not in ended], True
    lines = job.survey.groups[operation.key].lines
    busy = any(rank in lines and lines[rank].pending is not None for rank in peers)
    return ranks, [] if busy or waits.complete[operation] else peers, False


def _reduces(job: JobState, rank: int, operation: Operation, minority: Call) -> Call | None:
    """Return the last call in backward that the ring did not record, of a rank that cannot be `minority`."""
    last = None
    for key, table in sorted(job.survey.groups.items()):
        if key.recorder != SNAPSHOTS and (key.name, key.desc) == (operation.key.name, operation.key.desc):
            last = table.lines[rank].last if rank in table.lines else last
            if last is not None and agree(last.wire, minority.wire):
                calls = reversed(job.reading.calls(rank, key))
                last = next((call for call in calls if not agree(call.wire, minority.wire)), None)
    return last if last is not None and last.site is not None and in_backward(last) else None
