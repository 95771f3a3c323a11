"""Hangs of which only logs remain: reports of several ranks' NCCL watchdogs. Dumps show more."""

from diagnostics.analysis.divergence import from_watchdogs
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.from_watchdogs import Behind
from diagnostics.analysis.histories.watchdog_lines import GroupLog, read
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.late import HostStall
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.stacks.activity import NOWHERE


def by_watchdogs(job: JobState) -> Divergence | HostStall | GroupLog | None:
    """Compare the timeouts of each group's ranks; None if dumps show more or no two ranks timed out.

    A group alone is one whose timeouts do not show why its ranks wait.
    """
    if job.any_calls():
        return None
    groups = read(job.evidence)
    for group in groups:
        job.survey.declared.setdefault(group.key, tuple(sorted({*group.waits, *group.counters})))
    any_ended = any(end.by_itself for end in job.endings.values())
    case = from_watchdogs.find(job.evidence, groups, job.world(), any_ended=any_ended)
    if isinstance(case, Behind):
        call = case.call
        figures = (Operation(call.key, call.seq), call, case.waiting, NOWHERE, "", None, call.seq - 1, ())
        return HostStall(case.ranks, *figures, may_be_unrecorded=False, lines=case.lines)
    return case or next((group for group in groups if len(group.waits) > 1), None)
