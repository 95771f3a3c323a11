"""Hangs of which only logs are left: what the NCCL watchdogs of several ranks say about one process group.

Two ranks that wait at the same position in calls that do not fit are proof; positions that differ are none, since
NCCL may complete a call on one rank and not on another. Dumps show more, so jobs with any are not decided here.
"""

from dataclasses import dataclass

from diagnostics.analysis.divergence import Vote, count_votes
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.stall.watchdog_lines import UNNAMED, GroupLog, Wait, read


@dataclass(frozen=True, slots=True)
class WatchdogMismatch:
    """Ranks that wait at one position of a group in calls that do not fit together."""

    group: GroupLog
    vote: Vote

    @property
    def members(self) -> tuple[int, ...]:
        """Every rank of which a line names the group."""
        return tuple(sorted({*self.group.waits, *self.group.counters}))

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks to blame; at a tie all of them."""
        return self.vote.minority


@dataclass(frozen=True, slots=True)
class WatchdogGap:
    """Ranks that wait in a call that the others, all of whose calls completed, never made."""

    group: GroupLog
    call: Wait
    """Of the lowest rank that waits."""
    behind: tuple[int, ...]
    """Ranks that did not make the call."""
    few_wait: bool
    """Whether fewer than half of the group's ranks wait, so that these deviate."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks in the call."""
        return tuple(sorted(self.group.waits))

    @property
    def members(self) -> tuple[int, ...]:
        """Both sides."""
        return tuple(sorted({*self.group.waits, *self.behind}))

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks to blame."""
        return self.waiting if self.few_wait else self.behind


@dataclass(frozen=True, slots=True)
class WatchdogOpen:
    """Timeouts of one group that do not show why its ranks wait."""

    group: GroupLog


WatchdogCase = WatchdogMismatch | WatchdogGap | WatchdogOpen


def watchdog_case(job: JobState) -> WatchdogCase | None:
    """Compare the timeouts of each group's ranks; None where dumps show more, or where no two ranks timed out."""
    if job.any_calls():
        return None
    groups = read(job.evidence)
    for group in groups:
        vote = None if group.mixed or not _complete(job, group, groups) else _vote(group)
        if vote is not None:
            return WatchdogMismatch(group, vote)
    for group in groups:
        if not group.mixed and group.name != UNNAMED and (gap := _gap(job, group, groups)):
            return gap
    return next((WatchdogOpen(group) for group in groups if len(group.waits) > 1), None)


def _complete(job: JobState, group: GroupLog, groups: list[GroupLog]) -> bool:
    """Lines that name no group can only be compared where all ranks are there, and none is in a named one."""
    if group.name != UNNAMED:
        return True
    world = job.evidence.world_size or len(group.waits)
    ranked = [wait.rank for wait in group.waits.values() if wait.group_rank == wait.rank]
    return len(groups) == 1 and sorted(ranked) == list(range(world))


def _vote(group: GroupLog) -> Vote | None:
    """Return the ranks at the group's first open position, if the calls that they wait in do not match."""
    waits = [wait for _, wait in sorted(group.waits.items()) if wait.counted]
    if len(waits) < len(group.waits):
        return None  # Sends and receives share the numbers.
    position = min(wait.seq for wait in waits)
    here = [wait for wait in waits if wait.seq == position]
    by_op = len({wait.name for wait in here}) > 1
    if not by_op and not all(wait.even for wait in here):
        return None
    issued: dict[object, list[int]] = {}
    for wait in here:
        issued.setdefault(wait.name if by_op else wait.wire, []).append(wait.rank)
    vote = count_votes(group.key, position, issued, ())
    # Two groups may go by one name (split_group): only a majority shows that the ranks belong together.
    certain = group.default or group.name == UNNAMED or not vote.tie
    return vote if len(vote.sides) > 1 and certain else None


def _gap(job: JobState, group: GroupLog, groups: list[GroupLog]) -> WatchdogGap | None:
    """Return the ranks that wait in a call that the others never made, though all of their calls completed."""
    waits = list(group.waits.values())
    seqs = {wait.seq for wait in waits}
    first = min(waits, key=lambda wait: wait.rank)
    if len(seqs) != 1 or len({(wait.name, wait.numel) for wait in waits if wait.even}) > 1 or not first.counted:
        return None
    seq = seqs.pop()
    # Below that position the others could not have completed it either: such a counter counts something else.
    behind = {rank: counters for rank, counters in group.counters.items() if rank not in group.waits}
    busy = {rank for other in groups if other is not group for rank in other.waits}
    gone = {rank for rank, end in job.endings.items() if end.by_itself}
    if not behind or gone or busy & set(behind) or any(wait.name != first.name for wait in waits):
        return None
    if any((counters.enqueued, counters.completed) != (seq - 1, seq - 1) for counters in behind.values()):
        return None
    without_lines = (job.evidence.world_size or 0) - len(waits) - len(behind) if group.default else 0
    members = len(waits) + len(behind) + max(without_lines, 0)
    few_wait = 2 * (len(waits) + max(without_lines, 0)) < members
    return WatchdogGap(group, first, tuple(sorted(behind)), few_wait)
