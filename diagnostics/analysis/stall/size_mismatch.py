"""The calls that met where gloo ended a process because of different sizes: one in backward and one outside of it."""

from collections.abc import Iterator

from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.identity import agree, at_line, in_backward
from diagnostics.analysis.divergence.single_calls import at_places, outside_backward
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import KEY, collective_of, communicating
from diagnostics.analysis.vote import count_votes
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact

KIND = "gloo_mismatch"  # Lines with which gloo ends a process.


def mismatched(job: JobState) -> list[LogFact]:
    """Return the lines with which gloo ended processes."""
    return [fact for fact in job.evidence.facts if fact.kind == KIND]


def size_mismatch(job: JobState) -> Divergence | None:
    """Find the calls that met where a process ended because of different sizes; None if no log and ring show them."""
    facts = mismatched(job)
    divergences = list(_divergences(job, {fact.rank for fact in facts})) if facts else []
    if len(divergences) == 1:
        return replace(divergences[0], lines=tuple(facts))
    return _by_places(job, facts) if facts and not job.any_calls() else None


def _by_places(job: JobState, facts: list[LogFact]) -> Divergence | None:
    """Return the ranks that gloo ended in another call than that in which most ranks lost them, by their stacks."""
    aborted = {rank: collective_of(end.frames) for rank, end in job.endings.items() if end.kind == "aborted"}
    inside = {rank: (place.op, place.site) for rank, place in communicating(job).items()} | aborted
    places = {rank: (at[0], at[1]) for rank, at in inside.items() if at is not None and at[1] is not None}
    vote = count_votes(KEY, 0, places, range(job.world()))
    if len(vote.sides) != 2 or {*vote.sides[1]} != aborted.keys() or not vote.has_majority:
        return None
    return at_places(vote, places, lines=tuple(facts))


def _divergences(job: JobState, ended: set[int | None]) -> Iterator[Divergence]:
    """Yield ranks in a call that no other rank made before gloo ended a process, against peers in backward."""
    for operation in sorted(job.waits.waiting):
        if operation.key.recorder != SNAPSHOTS or operation.peer >= 0:
            continue
        ranks, peers, swallowed = _sides(job, operation, ended)
        if not peers or (swallowed and len(ranks) > len(peers)):
            continue
        outside = job.waits.calls[ranks[0], operation]
        inside = {rank: call for rank in peers if (call := _reduces(job, rank, operation, outside)) is not None}
        before = {at_line(call) for call in job.reading.calls(ranks[0], operation.key) if call.seq < outside.seq}
        # A call in the loop is not evidence: the rank may have left backward without a bucket.
        if len({call.site for call in inside.values()}) != 1 or at_line(outside) in before:
            continue
        first, reduction = min(inside.items())
        others = (first, *(peer for peer in peers if peer != first))  # A rank known to be in backward represents all.
        divergence = outside_backward(others, ranks, reduction, outside, came_later=swallowed)
        if divergence is not None:
            yield divergence


def _sides(job: JobState, operation: Operation, ended: set[int | None]) -> tuple[list[int], list[int], bool]:
    """Return ranks in the call, ranks elsewhere, and whether the latter reached it later, after ignoring the error."""
    waits = job.waits
    ranks, peers = waits.waiting[operation], list(waits.absent[operation])
    if not peers and ended & set(ranks):
        return [rank for rank in ranks if rank in ended], [rank for rank in ranks if rank not in ended], True
    lines = job.survey.groups[operation.key].lines
    busy = any(rank in lines and lines[rank].pending is not None for rank in peers)
    return ranks, [] if busy or waits.complete[operation] else peers, False


def _reduces(job: JobState, rank: int, operation: Operation, outside: Call) -> Call | None:
    """Return the last call in backward, missing from the ring, of a rank that cannot be `outside`.

    A snapshot has no frames: they are those of another rank's call at the same position.
    """
    last = None
    for key, table in sorted(job.survey.groups.items()):
        if key.recorder != SNAPSHOTS and (key.name, key.desc) == (operation.key.name, operation.key.desc):
            last = table.lines[rank].last if rank in table.lines else last
            if last is not None and agree(last.wire, outside.wire):
                calls = reversed(job.reading.calls(rank, key))
                last = next((call for call in calls if not agree(call.wire, outside.wire)), None)
            if last is not None and last.site is None:
                same = (call for peer in table.lines for call in job.reading.calls(peer, key) if call.seq == last.seq)
                last = next((call for call in same if call.site is not None and agree(call.wire, last.wire)), last)
    return last if last is not None and last.site is not None and in_backward(last) else None
