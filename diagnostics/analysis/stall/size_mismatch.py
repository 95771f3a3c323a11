"""The calls that met where gloo ended a process because of different sizes: one in backward and one outside of it."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.from_watchdogs import TOGETHER
from diagnostics.analysis.divergence.identity import agree, at_line, in_backward
from diagnostics.analysis.divergence.single_calls import at_places, outside_backward
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import KEY, communicating
from diagnostics.analysis.vote import OF_JOB, count_votes, settled
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.calls import Call, operation as operation_of
from diagnostics.evidence.model import LogFact


def size_mismatch(job: JobState) -> Divergence | None:
    """Find the calls that met where a process ended because of different sizes; None if no log and ring show them."""
    facts = job.size_mismatches()
    divergences = list(_divergences(job, {fact.rank for fact in facts})) if facts else []
    return replace(divergences[0], lines=tuple(facts)) if len(divergences) == 1 else None


def at_met_sizes(job: JobState) -> Divergence | None:
    """Return the ranks in another call than most where gloo ended a process, or with another size in the same call.

    That process met a message of its own position. A rank that only lost it is at this position too if the calls are
    ones that no rank completes long before another.
    """
    if not (facts := job.size_mismatches()) or job.any_calls():
        return None
    places = {rank: (at.op, at.site) for rank, at in communicating(job).items() if at.site is not None}
    vote = count_votes(KEY, 0, places, range(job.world()))
    if not vote.has_majority or len(vote.sides) > 2:
        return None
    own_bytes = {fact.rank: fact.fields["expected_bytes"] for fact in facts if "expected_bytes" in fact.fields}
    if len(vote.sides) == 1:
        few = minority_sizes(facts, job.world())
        rest = [rank for rank in own_bytes if rank in places and rank not in few]
        if not (few and rest and {*few} <= places.keys()):
            return None
        other_bytes = dict.fromkeys(few, facts[0].fields["received_bytes"])
        vote, own_bytes = settled((KEY, 0), rest, few), other_bytes | own_bytes
    else:
        met = own_bytes.keys() | job.met_sizes()
        late = met.isdisjoint(vote.sides[1]) and not {operation_of(op) for op, _ in places.values()} <= TOGETHER
        if late or met.isdisjoint(places):
            return None
    return at_places(vote, places, own_bytes, lines=tuple(facts))


def minority_sizes(facts: Sequence[LogFact], world: int) -> tuple[int, ...]:
    """Return the ranks whose own size is not that of most. A line also has the size of a peer, which may have none."""
    lines = {fact.rank: fact.fields for fact in facts if fact.rank is not None and "expected_bytes" in fact.fields}
    vote = count_votes(OF_JOB, 0, {rank: fields["expected_bytes"] for rank, fields in lines.items()}, range(world))
    if len({fields[name] for fields in lines.values() for name in ("expected_bytes", "received_bytes")}) != 2:
        return ()
    minority = vote.minority or (vote.silent if len(vote.silent) == 1 else ())
    return minority if len(vote.sides[0]) > max(1, len(minority)) else ()


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
