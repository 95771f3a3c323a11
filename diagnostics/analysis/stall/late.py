"""Ranks that are alive and that others wait for: their host or device is blocked, or few ranks went on alone."""

from collections import defaultdict
from contextlib import suppress

from msgspec import Struct

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import made_alone, unknown
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import AHEAD
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact, Stacks
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks.activity import Activity


class DeviceStall(Struct, frozen=True):
    """Ranks whose device does not begin or complete an operation that other devices began or completed."""

    ranks: tuple[int, ...]
    operation: Operation
    call: Call
    """The call on the first rank."""
    completed: int
    """Last position in the group that the first rank completed."""
    enqueued: int
    peers: tuple[int, ...]
    """Ranks that completed the operation; if `begun`, those that wait in it."""
    peers_completed: int
    waiting: tuple[int, ...]
    """Other ranks that wait for these."""
    begun: bool = False
    """Whether the devices of `peers` execute the operation, while these have not come to it."""


class HostStall(Struct, frozen=True):
    """Ranks that never reached the call that others wait in, and that have no pending call."""

    ranks: tuple[int, ...]
    operation: Operation
    call: Call
    waiting: tuple[int, ...]
    activity: Activity
    """Activity of the first rank; unknown without a stack."""
    stack_file: str
    last: Call | None
    """The last call of the first rank."""
    issued: int
    """Last position in the group that the first rank reached."""
    failed: tuple[int, ...]
    """Those of them that exited with code 1 and left no other record of their ending."""
    may_be_unrecorded: bool
    lines: tuple[LogFact, ...] = ()
    """The lines of a log that show it, if nothing else does."""

    @property
    def has_stack(self) -> bool:
        """Whether a stack shows what the host is doing."""
        return self.activity.doing not in {"unknown", "collective"}


def device_stall(job: JobState) -> DeviceStall | None:
    """Return ranks whose device lags behind its peers', by what NCCL's dumps say of each call; None if none."""
    if (not_begun := _not_begun(job)) is not None:
        return not_begun
    roots = _roots(job)
    ranks = {rank for rank in roots if _completed_elsewhere(job, rank)}
    ranks |= set(lagging(job))
    if not job.waits.waited_for():
        # No rank is absent, but most members completed what a few still wait in: their devices are stuck.
        for operation, few in job.waits.waiting.items():
            if _counts_completion(operation) and len(job.waits.complete[operation]) > len(few):
                ranks |= set(few)
    ranks -= _not_late(job)
    if not ranks:
        return None
    first = min(ranks)
    operation = (_completed_elsewhere(job, first) or job.waits.of_rank[first])[0]
    line = job.survey.ranks[first].lines[operation.key]
    lines = job.survey.groups[operation.key].lines
    peers = tuple(job.waits.complete[operation])
    most = max((lines[rank].done for rank in peers), default=line.done)
    call, waiting = job.waits.calls[first, operation], tuple(sorted(job.waits.reaching(ranks) - ranks))
    return DeviceStall(tuple(sorted(ranks)), operation, call, line.done, line.issued, peers, most, waiting)


def _not_begun(job: JobState) -> DeviceStall | None:
    """Return the fewer members whose devices did not begin a call that all issued, with nothing recorded before it."""
    waits, taken = job.waits, _not_late(job)
    for operation, waiting in sorted(waits.waiting.items()):
        if operation.peer >= 0 or waits.absent[operation] or waits.complete[operation]:
            continue
        begun = tuple(rank for rank in waiting if waits.calls[rank, operation].begun)
        late = sorted({*waiting} - {*begun})
        is_first = all(job.waits_first_in(rank, operation) for rank in late)
        if 0 < len(late) < len(begun) and is_first and not taken.intersection(late):
            line, others = job.survey.ranks[late[0]].lines[operation.key], tuple(sorted(waits.of_rank.keys() - {*late}))
            call = waits.calls[late[0], operation]
            figures = (line.done, line.issued, begun, line.done, others)
            return DeviceStall(tuple(late), operation, call, *figures, begun=True)
    return None


def late_hosts(job: JobState) -> HostStall | Divergence | None:
    """Return ranks without pending calls that others wait for, at the call in which most of them are missing.

    If they are most ranks and agree, the few that wait deviate.
    """
    idle = [rank for rank in _roots(job) if not job.waits.of_rank.get(rank)]
    missed: defaultdict[Operation, list[int]] = defaultdict(list)
    ended = {rank for rank, end in job.endings.items() if end.exited_early}
    for operation, absent in sorted(job.waits.absent.items()):
        # A rank that ended by itself with a call in progress no longer waits: nobody is late for that call.
        if set(job.waits.waiting[operation]) - ended:
            for rank in idle:
                if rank in absent:
                    missed[operation].append(rank)
    if not missed:
        return None

    def began_s(operation: Operation) -> float:
        return min(job.waits.calls[rank, operation].created_s or 0.0 for rank in job.waits.waiting[operation])

    operation = min(missed, key=lambda candidate: (-len(missed[candidate]), began_s(candidate), candidate))
    waiting = tuple(job.waits.waiting[operation])
    call, stacks = job.waits.calls[waiting[0], operation], job.latest_stacks()
    if _ran_ahead(job, operation, idle, stacks):
        absent = job.waits.absent[operation]
        made = job.survey.ranks[absent[0]].last or unknown(call.key, 0)
        return made_alone((absent, waiting), made, call, limit=AHEAD[all(map(job.may_be_unrecorded, absent))])
    first = idle[0]
    line = job.survey.ranks[first].lines.get(operation.key)
    at = activity.doing(stacks[first], taken_s(job, stacks[first])) if first in stacks else activity.NOWHERE
    beat = job.evidence.run.heartbeats.get(first) if job.evidence.run is not None else None
    in_data = beat is not None and beat.region == "data"
    if in_data and at.frame is not None and at.doing != "data loader":
        at = at.in_loader
    file, issued = stacks[first].file if first in stacks else "", line.issued if line is not None else 0
    failed = tuple(rank for rank in idle if rank in job.endings and job.endings[rank].kind == "failed")
    hidden, last = all(map(job.may_be_unrecorded, idle)), job.survey.ranks[first].last
    return HostStall(tuple(idle), operation, call, waiting, at, file, last, issued, failed, hidden)


def taken_s(job: JobState, stacks: Stacks) -> float | None:
    """Return the latest possible time of a stack dump (s since 1970); None if even its file has none."""
    if stacks.time_s is not None:
        return stacks.time_s
    with suppress(OSError, ValueError):
        return (job.evidence.root / stacks.file).stat().st_mtime
    return None


def lagging(job: JobState) -> list[int]:
    """Return ranks whose device lags behind its peers and that wait only for ranks without a dump."""
    waits = job.waits
    behind = (rank for rank in sorted(waits.of_rank) if _completed_elsewhere(job, rank))
    peers = {rank: [peer for operation in waits.blockers(rank) for peer in waits.absent[operation]] for rank in behind}
    return [rank for rank, absent in peers.items() if all(map(job.silent, absent))]


def _not_late(job: JobState) -> set[int]:
    """Return ranks that ended, that vanished or lost a peer that did, or whose calls differ from their peers'."""
    ended = {rank for rank, end in job.endings.items() if end.exited_early}
    if job.peer_vanished():  # Nobody waited in vain, and the dumps are older than the end.
        ended |= set(job.waits.roots()) - {rank for rank, end in job.endings.items() if end.kind != "lost_peer"}
    return ended | job.waits.incomparable()


def _roots(job: JobState) -> list[int]:
    not_late = _not_late(job)
    return [rank for rank in job.waits.roots() if rank not in not_late and not job.silent(rank)]


def _counts_completion(operation: Operation) -> bool:
    """Return whether completion on a device is known: gloo and dtk's ring do not record it."""
    return operation.peer < 0 and operation.key.on_devices


def _completed_elsewhere(job: JobState, rank: int) -> list[Operation]:
    counted, waits = filter(_counts_completion, job.waits.of_rank.get(rank, [])), job.waits
    return [operation for operation in counted if waits.complete[operation] and not waits.absent[operation]]


def _ran_ahead(job: JobState, operation: Operation, idle: list[int], stacks: dict[int, Stacks]) -> bool:
    """Return whether most members are outside any collective and agree: then the few that wait deviate."""
    waiting, absent = job.waits.waiting[operation], job.waits.absent[operation]
    members = len(waiting) + len(absent)
    if 2 * len(waiting) >= members or len(waiting) + len(set(absent) & set(idle)) < members:
        return False
    if any(activity.doing(stacks[rank]).doing not in {"collective", "unknown"} for rank in absent if rank in stacks):
        return False
    lines = job.survey.groups[operation.key].lines
    return len({lines[rank].issued for rank in absent if rank in lines}) <= 1
