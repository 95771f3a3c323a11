"""Hangs of which only logs remain: reports of several ranks' NCCL watchdogs about one process group. Two ranks at one
position in calls that do not match are proof; positions that differ are not. Dumps show more.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Vote, count_votes
from diagnostics.analysis.divergence.identity import agree
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.watchdog_lines import UNNAMED, GroupLog, Wait, enqueued_behind, members_of, read
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.model import Frame


class _OfGroup(Struct, frozen=True):
    group: GroupLog

    @property
    def members(self) -> tuple[int, ...]:
        """Every rank for which a line names the group."""
        return tuple(sorted({*self.group.waits, *self.group.counters}))

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that wait in a call of the group."""
        return tuple(sorted(self.group.waits))


class WatchdogMismatch(_OfGroup, frozen=True):
    """Ranks that wait at one position of a group in calls that do not match."""

    vote: Vote

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks to blame; all of them if there is a tie."""
        return self.vote.minority


class WatchdogGap(_OfGroup, frozen=True):
    """Ranks that wait in a call never made by the others, all of whose calls completed."""

    call: Wait
    """The call of the lowest rank that waits."""
    behind: tuple[int, ...]
    """Ranks that did not make the call."""
    few_wait: bool
    """Whether fewer than half of the group's ranks wait, so that these deviate."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks to blame."""
        return self.waiting if self.few_wait else self.behind


class WatchdogMissed(_OfGroup, frozen=True):
    """Ranks that wait in another group's call instead, which those in the call enqueued behind it."""

    call: Wait
    """The call of the lowest rank that waits."""
    culprits: tuple[int, ...]
    other: Wait
    """The call in which the lowest of them waits."""
    other_group: GroupLog


class WatchdogDrift(_OfGroup, frozen=True):
    """Ranks that wait in a call while most others have completed that position and later ones.

    A call may complete on some ranks only: a link or a device failed. The one after it may not, since every rank takes
    part in it after that one. So it was not the same call: the ranks' sequences had parted before.
    """

    call: Wait
    """The call of the lowest rank that is behind."""
    culprits: tuple[int, ...]
    """The ranks that are behind, fewer than those ahead."""
    ahead: tuple[int, ...]
    completed: int
    """Last position completed by all ranks that are ahead."""
    fewer: bool
    """Whether the counters show that the ranks behind made fewer calls rather than different ones."""


class WatchdogSites(Struct, frozen=True):
    """Ranks of the default group that timed out in one operation, called from different lines of the program."""

    op: str
    sites: dict[int, Frame]
    culprits: tuple[int, ...]
    """The ranks at other lines than the majority."""

    @property
    def members(self) -> tuple[int, ...]:
        """Every rank whose stack was printed."""
        return tuple(sorted(self.sites))


class WatchdogOpen(_OfGroup, frozen=True):
    """Timeouts of one group that do not show why its ranks wait."""

    certain: ClassVar[bool] = False


WatchdogDecided = WatchdogMismatch | WatchdogGap | WatchdogMissed | WatchdogDrift | WatchdogSites
WatchdogCase = WatchdogDecided | WatchdogOpen
TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
"""Operations in which every rank needs data from every other one, so that none completes without all."""
_SIDE = 3  # Minimum number of ranks compared: of two, neither is the exception.


def watchdog_case(job: JobState) -> WatchdogCase | None:
    """Compare the timeouts of each group's ranks; None if dumps show more or no two ranks timed out."""
    if job.any_calls():
        return None
    groups = read(job.evidence)
    behind = enqueued_behind(groups)
    clear = [group for group in groups if not group.mixed]
    clear.sort(key=lambda group: all((group.name, rank) in behind for rank in group.waits))
    complete = [group for group in clear if _complete(job, group, groups)]
    for group in complete:
        if (vote := _vote(group, clear)) is not None:
            return WatchdogMismatch(group, vote)
    busy = {rank for group in groups for rank in group.waits}
    for group in clear:
        if group.name != UNNAMED and (gap := _gap(job, group, busy)):
            return gap
    if not job.evidence.is_cut and (missed := _missed(clear, behind, job.world())):
        return missed
    for group in complete:
        if drift := _drift(group):
            return drift
    if sites := _sites(job, groups):
        return sites
    return next((WatchdogOpen(group) for group in groups if len(group.waits) > 1), None)


def _complete(job: JobState, group: GroupLog, groups: list[GroupLog]) -> bool:
    """Return whether a group's lines are comparable: unnamed ones need one from every rank and no named group."""
    if group.name != UNNAMED:
        return True
    sizes = filter(None, (members_of(wait.fact) for wait in group.waits.values()))
    world = job.evidence.world_size or max(sizes, default=max(len(group.waits), _SIDE))
    ranked = [wait.rank for wait in group.waits.values() if wait.group_rank == wait.rank]
    return len(groups) == 1 and sorted(ranked) == list(range(world))


def _vote(group: GroupLog, groups: Iterable[GroupLog]) -> Vote | None:
    """Return the ranks at the group's first open position if the calls that they wait in do not match.

    At a tie, the side in the call at which ranks of other groups with the same description wait at this position counts
    as the majority, or else the one that enqueued as many calls as they all did.
    """
    waits = [wait for _, wait in sorted(group.waits.items()) if wait.counted]
    if len(waits) < len(group.waits):
        return None  # Sends and receives use the same numbers.
    position = min(wait.seq for wait in waits)
    at_position = [wait for wait in waits if wait.seq == position]
    by_op = len({wait.name for wait in at_position}) > 1
    if not by_op and not all(wait.even for wait in at_position):
        return None
    call = attrgetter("name" if by_op else "wire")
    issued: defaultdict[object, list[int]] = defaultdict(list)
    for wait in at_position:
        issued[call(wait)].append(wait.rank)
    vote = count_votes(GroupKey("nccl", group.name, group.desc), position, issued, ())
    if vote.tie and group.desc:
        alike = [other for other in groups if other is not group and other.desc == group.desc]
        calls = {call(wait) for other in alike for wait in other.waits.values() if wait.seq == position}
        counts = {counters.enqueued for other in alike for counters in other.counters.values()}
        enqueued = {rank: counters.enqueued for rank, counters in group.counters.items()}
        sides = [side for side in vote.sides if {call(group.waits[rank]) for rank in side} <= calls]
        sides = sides or [side for side in vote.sides if {enqueued.get(rank) for rank in side} == counts]
        if len(sides) == 1:
            rest = (side for side in vote.sides if side != sides[0])
            vote = replace(vote, sides=(sides[0], *rest), supported=True)
    # Two groups may share a number: only a majority or a name shows that the ranks belong together.
    certain = group.default or group.name == UNNAMED or group.has_guid or not vote.tie
    return vote if len(vote.sides) > 1 and certain else None


def _missed(groups: list[GroupLog], behind: set[tuple[str, int]], world: int) -> WatchdogMissed | None:
    """Return the ranks that left out a call: no rank completes it without them, and they are in a later one."""
    of_rank: defaultdict[int, list[GroupLog]] = defaultdict(list)
    for group in groups:
        for rank in group.waits:
            of_rank[rank].append(group)
    for group, absent in sorted(_absent(groups, world), key=lambda pair: -len(pair[0].waits)):
        waits, first = group.waits, group.waits[min(group.waits)]
        is_one_call = len({(wait.seq, wait.name) for wait in waits.values()}) == 1 and first.name in TOGETHER
        if not is_one_call or any((group.name, rank) in behind for rank in waits):
            continue
        for other in of_rank[absent[0]]:
            other_call = other.waits[absent[0]]
            alike = (rank in other.waits and other.waits[rank].seq == other_call.seq for rank in absent)
            met = [rank for rank in waits if rank in other.waits and other.waits[rank].seq == other_call.seq]
            is_first = not any((other.name, rank) in behind for rank in absent)
            if all(alike) and is_first and met and all((other.name, rank) in behind for rank in met):
                return WatchdogMissed(group, first, absent, other_call, other)
    return None


def _absent(groups: list[GroupLog], world: int) -> Iterator[tuple[GroupLog, tuple[int, ...]]]:
    """Yield each group with its ranks that do not wait in it, if they can be told.

    The groups of one description are taken as those of a dimension of the mesh: equally large, each rank in one.
    """
    dimensions: defaultdict[tuple[str, str], list[GroupLog]] = defaultdict(list)
    for group in groups:
        dimensions[group.desc, "" if group.desc else group.name].append(group)
    for alike in dimensions.values():
        recorded = {rank for group in alike for rank in (*group.waits, *group.counters)}
        sizes = (members_of(wait.fact) or 0 for group in alike for wait in group.waits.values())
        size = max(sizes) or max(len({*group.waits, *group.counters}) for group in alike)
        absent = tuple(rank for rank in range(world) if rank not in recorded)
        for group in alike:
            whole = len(group.waits) + len(absent) == (world if group.default else size)
            if absent and whole and group.counters.keys() <= group.waits.keys():
                yield group, absent


def _drift(group: GroupLog) -> WatchdogDrift | None:
    """Return the ranks that are behind, if most ranks of the group continued without them."""
    counters = group.counters
    completed = {rank: wait.seq - 1 for rank, wait in group.waits.items()}
    completed |= {rank: counter.completed for rank, counter in counters.items() if rank not in completed}
    call = min(group.waits.values(), key=lambda wait: (wait.seq, wait.rank))
    behind = tuple(sorted(rank for rank, wait in group.waits.items() if wait.seq == call.seq))
    ahead = tuple(sorted(rank for rank, done in completed.items() if done > call.seq))
    if call.name not in TOGETHER or len(ahead) <= len(behind) or len(ahead) + len(behind) < max(_SIDE, len(completed)):
        return None
    least = min(completed[rank] for rank in ahead)
    enqueued = [counters[rank].enqueued for rank in behind if rank in counters]
    return WatchdogDrift(group, call, behind, ahead, least, bool(enqueued) and max(enqueued) < least)


def _sites(job: JobState, groups: list[GroupLog]) -> WatchdogSites | None:
    """Return ranks whose printed stacks differ, if the lines name no group other than the default group."""
    named = [fact for fact in job.evidence.facts if fact.kind == "watchdog_status"]
    if not named or any(fact.fields.get("desc") != "default_pg" for fact in named) or len(groups) > 1:
        return None
    sites, ops = dict[int, Frame](), set[str]()
    for fact in job.evidence.facts:
        if fact.kind == "collective_stack" and fact.rank is not None:
            sites.setdefault(fact.rank, Frame(fact.fields["file"], fact.fields["line"], fact.fields["function"]))
            ops.add(str(fact.fields.get("op")))
    of_site: dict[tuple[str, str], list[int]] = {}
    for rank, frame in sorted(sites.items()):
        of_site.setdefault((frame.file, frame.function), []).append(rank)
    culprits = count_votes(GroupKey("nccl", "0", "default_pg"), 0, of_site, ()).minority
    if len(ops) != 1 or not ops <= TOGETHER or len(sites) < _SIDE or not culprits or 2 * len(culprits) >= len(sites):
        return None
    return WatchdogSites(ops.pop(), sites, culprits)


def _gap(job: JobState, group: GroupLog, busy: set[int]) -> WatchdogGap | None:
    """Return the ranks that wait in a call that the others never made, though all their calls completed.

    `busy` are the ranks that wait in any group.
    """
    waits = list(group.waits.values())
    seqs = {wait.seq for wait in waits}
    first = min(waits, key=lambda wait: wait.rank)
    if len(seqs) != 1 or not all(agree(first.wire, wait.wire) for wait in waits) or not first.counted:
        return None
    seq = seqs.pop()
    # The others could not have completed it below that position either: such a counter counts something else.
    behind = {rank: counters for rank, counters in group.counters.items() if rank not in group.waits}
    ended = {rank for rank, end in job.endings.items() if end.by_itself}
    if not behind or ended or busy & set(behind):
        return None
    if any((counters.enqueued, counters.completed) != (seq - 1, seq - 1) for counters in behind.values()):
        return None
    without_lines = (job.evidence.world_size or 0) - len(waits) - len(behind) if group.default else 0
    members = len(waits) + len(behind) + max(without_lines, 0)
    few_wait = 2 * (len(waits) + max(without_lines, 0)) < members
    return WatchdogGap(group, first, tuple(sorted(behind)), few_wait)
