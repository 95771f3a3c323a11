"""Ranks that are alive and that others wait for: their host or device is blocked, or few ranks went on alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence import from_watchdogs
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import made_alone, unknown
from diagnostics.analysis.histories.watchdog_lines import GroupLog, read_counted
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import AHEAD
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact, Stacks
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks.activity import Activity
from diagnostics.evidence.stacks.dumps import is_users, main_thread, taken_s


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


def late_hosts(job: JobState) -> HostStall | Divergence | None:
    """Return ranks without pending calls that others wait for, at the call in which most of them are missing.

    If they are most ranks and agree, the few that wait deviate.
    """
    idle = [rank for rank in late_roots(job) if not job.waits.of_rank.get(rank)]
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
    absent = job.waits.absent[operation]
    if set(absent) <= set(idle):
        last_call, alone = job.survey.ranks[absent[0]].last or unknown(call.key, 0), None
        if _agree_outside(job, operation, stacks):
            limit = AHEAD[all(map(job.may_be_unrecorded, absent))]
            alone = made_alone(waiting, absent, last_call, call, limit=limit)
        elif len(waiting) == 1 and _for_one_rank(call, absent, stacks):
            alone = made_alone(waiting, absent, last_call, call, past=True)
        if alone is not None:
            return alone
    first = idle[0]
    line = job.survey.ranks[first].lines.get(operation.key)
    at = activity.doing(stacks[first], taken_s(job.evidence, stacks[first])) if first in stacks else activity.NOWHERE
    beat = job.evidence.run.heartbeats.get(first) if job.evidence.run is not None else None
    in_data = beat is not None and beat.region == "data"
    if in_data and at.frame is not None and at.doing != "data loader":
        at = at.in_loader
    file, issued = stacks[first].file if first in stacks else "", line.issued if line is not None else 0
    failed = tuple(rank for rank in idle if rank in job.endings and job.endings[rank].kind == "failed")
    hidden, last = all(map(job.may_be_unrecorded, idle)), job.survey.ranks[first].last
    return HostStall(tuple(idle), operation, call, waiting, at, file, last, issued, failed, hidden)


def not_late(job: JobState) -> set[int]:
    """Return ranks that ended, that vanished or lost a peer that did, or whose calls differ from their peers'."""
    ended = {rank for rank, end in job.endings.items() if end.exited_early}
    if job.peer_vanished():  # Nobody waited in vain, and the dumps are older than the end.
        ended |= set(job.waits.roots()) - {rank for rank, end in job.endings.items() if end.kind != "lost_peer"}
    return ended | job.waits.incomparable()


def late_roots(job: JobState) -> list[int]:
    """Return the ranks that others wait for and that are late, as far as their waits show."""
    excluded = not_late(job)
    return [rank for rank in job.waits.roots() if rank not in excluded and rank in job.survey.ranks]


def _agree_outside(job: JobState, operation: Operation, stacks: dict[int, Stacks]) -> bool:
    """Return whether the ranks that did not reach a call are at one position, and outside any collective."""
    absent, lines = job.waits.absent[operation], job.survey.groups[operation.key].lines
    if any(activity.doing(stacks[rank]).doing not in {"collective", "unknown"} for rank in absent if rank in stacks):
        return False
    return len({lines[rank].issued for rank in absent if rank in lines}) <= 1


def _for_one_rank(call: Call, others: Sequence[int], stacks: Mapping[int, Stacks]) -> bool:
    """Return whether the source gives a call to one rank alone, and the `others` are past its line for good.

    They have no call of the same operation ahead in that function, whose outer frames are in no loop.
    """
    if not call.site or len(others) < 2 or source_text.condition(call.site, call.created_s)[0] != "one rank":
        return False
    place, name, ahead = (call.site.file, call.site.function.rpartition(".")[2]), call.user_op or call.wire.op, 0
    for rank in others:
        thread = main_thread(stacks[rank]) if rank in stacks else None
        users = [at for at in thread.frames if is_users(at)] if thread is not None else []
        shared = [n for n, at in enumerate(users) if (at.file, at.function.rpartition(".")[2]) == place]
        outer = users[shared[0] :] if shared else []
        loops = {source_text.place(at.file, [at.line], at.line, call.created_s) for at in outer}
        if loops != {"no loop"} or outer[0].line <= call.site.line:
            return False
        calls = source_text.callers(name, outer[0], call.created_s)
        ahead += sum(at.line >= outer[0].line and at.function == outer[0].function for at in calls)
    return not ahead


def by_watchdogs(job: JobState) -> Divergence | HostStall | GroupLog | None:
    """Compare the timeouts of each group's ranks; None if dumps show more or no two ranks timed out.

    A group alone is one whose timeouts do not show why its ranks wait.
    """
    if job.any_calls():
        return None
    groups = read_counted(job.evidence)
    for group in groups:
        job.survey.declared.setdefault(group.key, tuple(sorted({*group.waits, *group.counters})))
    any_ended = any(end.by_itself for end in job.endings.values())
    case = from_watchdogs.find(job.evidence, groups, job.world(), any_ended=any_ended)
    if isinstance(case, GroupLog):
        waiting, late = sorted(case.waits), sorted(case.counters.keys() - case.waits.keys())
        call, lines = case.waits[waiting[0]].call(case), (case.counters[late[0]].fact, case.waits[waiting[0]].fact)
        figures = (Operation(call.key, call.seq), call, tuple(waiting), activity.NOWHERE, "", None, call.seq - 1, ())
        return HostStall(tuple(late), *figures, may_be_unrecorded=False, lines=lines)
    return case or next((group for group in groups if len(group.waits) > 1), None)
