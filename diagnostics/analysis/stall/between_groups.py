"""Ranks of a running job that wait for each other in calls of groups, whose members their connections show."""

from collections.abc import Mapping

from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.identity import shared_path
from diagnostics.analysis.divergence.loop_exit import in_branch
from diagnostics.analysis.divergence.single_calls import same_round
from diagnostics.analysis.observations import Observation
from diagnostics.analysis.stall.circular import CircularWait, GroupOrder, circular_waits
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import KEY, InCollective
from diagnostics.analysis.wait_graph.graph import Operation, WaitGraph
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire, operation


def between_groups(
    job: JobState, observed: Mapping[int, Observation], inside: Mapping[int, InCollective]
) -> CircularWait | Divergence | None:
    """Return how ranks wait for each other in calls of groups whose members are known; None if that is not certain.

    Groups in two variables of one function differ. So do those of two ranks that make the same call in a group of these
    two alone: in one group it would have completed. Stacks do not show what was called before, so the lines must show
    that no rank is a round of a loop ahead.
    """
    waits, everyone = WaitGraph(), tuple(range(job.world()))
    members = {rank: observed[rank].members(rank, everyone) for rank in inside}
    for rank, ranks in ((rank, ranks) for rank, ranks in members.items() if ranks):
        place, same = inside[rank], [peer for peer in inside if members[peer] == ranks]
        variables = {peer: observed[peer].call.get("name", "").rpartition(":") for peer in same}
        apart = len(same) == len(ranks) == 2 and len({inside[peer].op for peer in same}) == 1
        name = variables[rank][2] if len({function for function, *_ in variables.values()}) == 1 else ""
        of_group = GroupKey(KEY.recorder, f"{ranks}:{rank if apart else name}", name or "undefined")
        key = of_group if observed[rank].call["group"] == "other" else KEY
        described = Described(Wire(operation(place.op), (), ()), place.op)
        waits.add(rank, Operation(key, 0), Call(key, 0, described, False, place.time_s, stack=place.stack))
        job.survey.declared[key] = ranks
    for at, waiting in waits.waiting.items():
        waits.absent[at] = tuple(rank for rank in job.survey.declared[at.key] if rank not in waiting)
        waits.complete[at] = []
    case = next(iter(circular_waits(replace(job, waits=waits))), None)
    certain = isinstance(case, GroupOrder) and len(case.sides) == 2
    if isinstance(case, GroupOrder) and certain:
        certain = _either_first(case.sides[0].call, case.sides[1].call)
    elif isinstance(case, Divergence):
        common = len(shared_path([case.majority.stack[::-1], case.minority.stack[::-1]])) + 1
        counters = [observed[rank].counters for rank in (case.majority_rank, case.minority_rank)]
        certain = same_round(case.majority.stack[::-1][:common], case.majority.created_s, counters)
    job.waits = waits if certain else job.waits
    return case if certain else None


def _either_first(first: Call, second: Call) -> bool:
    """Whether the text lets ranks make two calls in either order: in branches of their own, or by one line."""
    if first.stack != second.stack:
        return in_branch(first, second) and in_branch(second, first)
    at = first.stack[0]
    is_read = source_text.place(at.file, [at.line], at.line, first.created_s) != "unknown"
    return is_read and source_text.condition(at, first.created_s) == "none"
