"""Ranks that are alive and that others wait for: their host or device is blocked, or few ranks went on alone."""

import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence import from_watchdogs
from diagnostics.analysis.divergence.explanation import Place
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import made_alone, unknown
from diagnostics.analysis.divergence.whole_programs import made_more
from diagnostics.analysis.histories.watchdog_lines import GroupLog, read_counted
from diagnostics.analysis.stall.job_state import JobState, user_frames
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import AHEAD
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks.activity import Activity
from diagnostics.evidence.stacks.dumps import taken_s


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
        last_call = job.survey.ranks[absent[0]].last or unknown(call.key, 0)
        alone = _made_earlier(job, operation, waiting) if len(waiting) == 1 < len(absent) else None
        lines, seen = job.survey.groups[operation.key].lines, [stacks[rank] for rank in absent if rank in stacks]
        apart = len({lines[rank].issued for rank in absent if rank in lines}) > 1
        # They agree, and no stack shows one of them outside of collectives.
        if not (alone or apart or any(activity.doing(dump).doing not in {"collective", "unknown"} for dump in seen)):
            limit = AHEAD[all(map(job.may_be_unrecorded, absent))]
            alone = made_alone(waiting, absent, last_call, call, limit=limit)
        elif alone is None and len(waiting) == 1 and (past := _missed_for_good(job, waiting[0], call, absent)):
            alone = made_alone(waiting, absent, last_call, call, past=past[0], limit=past[1])
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


def _made_earlier(job: JobState, operation: Operation, waiting: tuple[int, ...]) -> Divergence | None:
    """Return the call that a rank alone made earlier, without which all its later ones agree with the others'."""
    absent, groups = job.waits.absent[operation], job.survey.groups
    for key in (key for key in sorted(groups) if key.name == operation.key.name):
        alike = {groups[key].lines[rank].issued for rank in absent if rank in groups[key].lines}
        others, own = (job.reading.calls(rank, key) for rank in (absent[0], waiting[0]))
        case = made_more(absent, waiting, others, own, 1) if alike == {operation.seq - 1} else None
        if case is not None and case.explanation.terms[0].name == "later calls agree":
            return case
    return None


def _missed_for_good(job: JobState, waiting: int, call: Call, others: Sequence[int]) -> tuple[Place, float] | None:
    """Return how a rank alone made a call that all `others` are past for good by the source, and how sure that can be.

    They have no call that leads to the same operation ahead in that function, whose outer frames are in no loop, or in
    the functions that it called. A condition that selects one rank is sure; otherwise these may have left a call out.
    """
    when_s, path, stacks = call.created_s, job.path(waiting, call), job.latest_stacks()
    tests = [source_text.condition(at, when_s)[0] for at in path]
    start = tests.index("one rank") if "one rank" in tests else 0
    seeds = {op := call.user_op or call.wire.op, *(at.function for at in path[:start])}
    line_calls = " ".join(source_text.calls_at(path[0], when_s, op)) if path else ""
    seeds |= {*re.findall(r"\w+(?=\()", line_calls)} if f"{op}(" not in line_calls else set()  # As of a backward pass.
    for frames in {user_frames(stacks.get(rank)) for rank in others}:  # Most of them are equal.
        functions = [(at.file, at.function) for at in frames]
        met = (at for at in path[start:] if (at.file, at.function) in functions)
        if (own := next(met, None)) is None:
            return None
        level = functions.index((own.file, own.function))
        loops = {source_text.place(at.file, [at.line], at.line, when_s) for at in frames[level:]}
        if loops != {"no loop"} or frames[level].line <= own.line:
            return None
        for at in frames[: level + 1]:
            names = source_text.leading_to(seeds, at.file, when_s)
            ahead = [line for name in names for line in source_text.callers(name, at, when_s) if line.line >= at.line]
            # Each line is in the call that the frame below shows.
            if any(line.function == at.function and (line.line > at.line or at is frames[0]) for line in ahead):
                return None
    loops = {source_text.place(at.file, [at.line], at.line, when_s) for at in path}
    if len(others) < 2 or (loops == {"no loop"} and {*tests} == {"none"}):
        return None
    return "within" if {*tests} != {"none"} else "round", 1.0 if "one rank" in tests else AHEAD[True]


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
