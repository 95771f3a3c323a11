"""Ranks that exited normally while others wait: did they deviate, or those that continued? A call from a line that no
exited rank reached, after which all calls match again, is an extra call.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import Term, support
from diagnostics.analysis.divergence.explanation import Explanation
from diagnostics.analysis.divergence.find import Divergence, Vote
from diagnostics.analysis.divergence.identity import on_path
from diagnostics.analysis.divergence.sequences import predict
from diagnostics.analysis.divergence.single_calls import stated
from diagnostics.analysis.divergence.whole_programs import PathCall, align
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.last_seen import LastSeen, last_seen
from diagnostics.contract.findings import LIKELY, POSSIBLE, PROBABLE, SEEN
from diagnostics.evidence.calls import Call, GroupKey

_LONGEST = 64  # Calls that one side may have made in excess of the other.
_ROUNDS = 2  # Whole rounds needed to identify a loop.


class EarlierStep(Struct, frozen=True):
    """Ranks that exited in an earlier step than the current step of a peer."""

    step: int
    peer: int
    peer_step: int
    peer_call: Call | None
    peers: tuple[int, ...]
    last: LastSeen | None


class WithinRound(Struct, frozen=True):
    """A rank whose calls end within a round of its peers' loop."""

    rank: int
    size: int
    """Number of calls in one round."""
    over: int
    """Calls that it made in the round in which it ended."""


Departure = Divergence | EarlierStep | WithinRound


def departure(job: JobState, ended: tuple[int, ...]) -> Departure | None:
    """Compare ranks that all ended with exit code 0 with those that wait for them; None if no record shows more."""
    keys = sorted(job.survey.groups, key=lambda key: (key.recorder != SNAPSHOTS, key))
    more = next((case for key in keys if (case := _more_calls(job, ended, key)) is not None), None)
    if more is not None:
        return more
    own = max((job.step_of(rank) or 0 for rank in ended), default=0)
    peers = {rank: job.step_of(rank) or 0 for rank in job.survey.ranks if rank not in ended}
    most = max(peers.values(), default=0)
    if 0 < own < most:
        ahead = min(rank for rank, step in peers.items() if step == most)
        call = next(iter(job.survey.ranks[ahead].pending()), job.survey.ranks[ahead].last)
        return EarlierStep(own, ahead, most, call, tuple(sorted(peers)), last_seen(job, ended[0]))
    stops = [_ended_in_round(job, rank) for rank in ended if rank in job.survey.ranks]
    cases = [stop for stop in stops if stop is not None]
    if between := [stop for stop in cases if isinstance(stop, Divergence)]:
        first, ranks = between[0], tuple(sorted(stop.minority_rank for stop in between))
        others = tuple(rank for rank in first.vote.sides[0] if rank not in ranks)
        return replace(first, culprits=ranks, vote=replace(first.vote, sides=(others, ranks)))
    return next(iter(cases), None)


def _more_calls(job: JobState, exited: tuple[int, ...], key: GroupKey) -> Divergence | None:
    """Return the divergence of ranks that wait in calls that the exited ranks never made."""
    lines = job.survey.groups[key].lines
    ended = tuple(rank for rank in exited if rank in lines)
    waiting = tuple(sorted(rank for rank in lines if rank not in exited))
    lengths = [{lines[rank].issued for rank in side} for side in (ended, waiting)]
    if not all(len(issued) == 1 for issued in lengths) or set(exited) & set(job.survey.members(key)) - set(ended):
        return None
    by = lengths[1].pop() - lengths[0].pop()
    if not 0 < by <= _LONGEST:
        return None
    longer, all_shorter = job.reading.calls(waiting[0], key), job.reading.calls(ended[0], key)
    start = max(longer[0].seq, all_shorter[0].seq) if longer and all_shorter else 0
    longer, shorter = ([call for call in calls if call.seq >= start] for calls in (longer, all_shorter))
    if not shorter or len(longer) != len(shorter) + by or not all(call.stack for call in (*longer, *shorter)):
        return None
    short, long = ([PathCall(key.name, call.wire, call.stack) for call in calls] for calls in (shorter, longer))
    changes = align(short, long)
    if [(change.kind, change.count) for change in changes] != [("insert", by)]:
        return None
    at = changes[0].minority_at
    exited_call, extra = shorter[min(at, len(shorter) - 1)], tuple(longer[at : at + by])
    agreeing, alone, is_new = len(short) - at, len(waiting) < len(ended), long[at] not in set(short)

    def made(place: Literal["within", "round"], term: Term, limit: float) -> Divergence:
        vote, explanation = Vote(key, extra[0].seq, (ended, waiting)), Explanation("insert", place, extra, (term,))
        return stated(vote, exited_call, extra[0], explanation, ended="majority", limit=limit)

    rest = long[:at] + long[at + by :]
    # Calls from a line whose earlier calls fitted those of other lines only by chance? So it is when DDP sends its
    # buffers in the first forward pass after a step: in rank 0's evaluation, or in the others' next step.
    if fits := [call for call, met in zip(rest, short, strict=True) if call != met]:
        by_chance = fits.count(long[at + by - 1])
        if not (is_new and by_chance) or 2 * len(fits) > len(short):  # Ranks without a shared path cannot be compared.
            return None
        return made("within", support("made alone", by_chance), LIKELY)
    if is_new and (agreeing or alone):
        term = support("later calls agree", agreeing) if agreeing else support("ended in order")
        return made("within", term, SEEN if agreeing else PROBABLE)
    if not alone or agreeing:
        return None
    # The exited ranks made rounds of equal calls, and the extra call starts another one.
    prediction = predict([on_path(call) for call in all_shorter], on_path(extra[0]))
    return made("round", support("ended in order"), POSSIBLE) if prediction is not None and prediction.whole else None


def _ended_in_round(job: JobState, rank: int) -> Divergence | WithinRound | None:
    """Return where a rank stopped, relative to a peer that made the call after its last one."""
    for key, line in sorted(job.survey.ranks[rank].lines.items()):
        peers = job.survey.groups[key].lines
        # Gloo marks failed and completed calls alike, so the call need not be pending.
        peer = next((other for other in sorted(peers) if other != rank and peers[other].issued > line.issued), None)
        peer_calls = job.reading.calls(peer, key) if peer is not None else []
        pending = next((call for call in peer_calls if call.seq == line.issued + 1), None)
        if peer is None or pending is None:
            continue
        calls = [call for call in job.reading.calls(rank, key) if call.seq < pending.seq]
        tokens = [on_path(call) for call in calls]
        prediction = predict(tokens, on_path(pending))
        if prediction is None or not prediction.whole:
            return None
        size = prediction.round
        start = len(tokens) - size
        while start > 0 and tokens[start - 1] == tokens[start - 1 + size]:
            start -= 1
        whole, over = divmod(len(tokens) - start, size)
        # No round begins where the calls begin to repeat if the record has lost its beginning, or if the first round
        # differs in part, as DDP's does: then the calls before come from the same lines.
        lines = {call.stack for call in calls[start : start + size]}
        opens = calls[start - 1].stack not in lines if start else calls[0].seq == 1
        if whole < _ROUNDS or (size > 1 and not opens):
            return None
        if over:
            return WithinRound(rank, size, over)
        ahead = tuple(other for other in sorted(peers) if peers[other].issued > line.issued)
        explanation = Explanation("drop", "round", (pending,), (support("between two rounds", whole),))
        # Two calls with known lines repeat in a loop; one may do so otherwise.
        limit = 1.0 if calls[-1].site is not None and size > 1 else POSSIBLE
        vote = Vote(key, pending.seq, (ahead, (rank,)))
        return stated(vote, pending, calls[-1], explanation, ended="minority", limit=limit)
    return None
