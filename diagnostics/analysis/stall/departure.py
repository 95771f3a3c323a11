"""Ranks that exited normally while others wait: did they deviate, or those that continued?"""

from msgspec import Struct

from diagnostics.analysis.divergence.ended_early import WithinRound, ended_in_round, made_more, together
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.last_seen import LastSeen, last_seen
from diagnostics.evidence.calls import Call, GroupKey

_LONGEST = 64  # Calls that one side may have made in excess of the other.


class EarlierStep(Struct, frozen=True):
    """Ranks that exited in an earlier step than the current step of a peer."""

    step: int
    peer: int
    peer_step: int
    peer_call: Call | None
    peers: tuple[int, ...]
    last: LastSeen | None


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
        return together(between)
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
    shorter, longer = job.reading.calls(ended[0], key), job.reading.calls(waiting[0], key)
    return made_more(ended, waiting, shorter, longer, by)


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
        ahead = tuple(other for other in sorted(peers) if peers[other].issued > line.issued)
        return ended_in_round(rank, ahead, calls, pending)
    return None
