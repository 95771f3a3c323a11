"""The last recorded position of a rank, from its ring or its dump."""

from msgspec import Struct

from diagnostics.analysis.divergence.find import SAME_MOMENT_S
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.evidence.calls import Call


class LastSeen(Struct, frozen=True):
    """The most recent call of a rank, and a peer that waits for the rank."""

    rank: int
    call: Call
    inside: bool
    """Whether the rank never returned from the call."""
    peer: int | None = None
    peer_call: Call | None = None


def last_seen(job: JobState, rank: int) -> LastSeen | None:
    """Return the latest call of a rank, or None; of one call in two recorders, the one with its line."""
    record = job.survey.ranks.get(rank)
    if record is None or record.last is None:
        return None
    calls = [record.last, *(line.last for line in record.lines.values() if line.last is not None)]
    youngest_s = max(call.created_s or 0.0 for call in calls)
    same = [call for call in calls if youngest_s - (call.created_s or 0.0) <= SAME_MOMENT_S]
    call = max(same, key=lambda call: (call.site is not None, call.created_s or 0.0))
    end = job.endings.get(rank)
    # A rank that exited normally returned from its last call, though gloo marks it complete only later.
    inside = not call.done and call.completion_known and not (end is not None and end.in_order)
    for operation, absent in sorted(job.waits.absent.items()):
        waiting = job.waits.waiting[operation]
        if rank in absent and waiting:
            return LastSeen(rank, call, inside, waiting[0], job.waits.calls[waiting[0], operation])
    return LastSeen(rank, call, inside)
