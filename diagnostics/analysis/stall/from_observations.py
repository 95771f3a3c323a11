"""Ranks of a running job, observed repeatedly from outside: which are not in the collective that others wait in."""

import re
from collections.abc import Mapping
from itertools import filterfalse
from typing import Literal

from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.identity import shared_path
from diagnostics.analysis.divergence.loop_exit import conditions
from diagnostics.analysis.divergence.single_calls import by_lines, differing_roots, is_for_one_rank, same_round
from diagnostics.analysis.observations import Observation, out_of_round
from diagnostics.analysis.stall.circular import CircularWait, GroupOrder, circular_waits
from diagnostics.analysis.stall.job_state import STALL_S, JobState
from diagnostics.analysis.stall.stack_evidence import KEY, UNNAMED, HostOutside, InCollective, collective_of, compared
from diagnostics.analysis.stall.startup import Startup
from diagnostics.analysis.vote import is_majority
from diagnostics.analysis.wait_graph.graph import Operation, WaitGraph
from diagnostics.contract.findings import OPEN
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import ROOTED, Call, Described, GroupKey, Wire, is_library, operation
from diagnostics.evidence.model import Frame, LogFact, Stacks, Thread
from diagnostics.evidence.stacks import activity, dumps as stacks
from diagnostics.evidence.stacks.activity import Activity

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](?!torch[/\\])")
_COMMUNICATES = re.compile(r"\b(?:c10d|gloo)::|\bnccl[A-Z]")  # In the names of C++ functions.


def from_observations(
    job: JobState, observed: dict[int, Observation]
) -> HostOutside | CircularWait | Divergence | Startup | None:
    """Explain why the ranks are stalled; None while they make progress or if a rank has exited."""
    dumps = job.latest_stacks()
    inside, activities = places(observed, dumps)
    outside = list(activities)
    if not inside or any(rank.exited for rank in observed.values()):
        return None
    blocked_s = min(observed[rank].blocked_s for rank in inside)
    if not outside:  # Calls of sub-groups cannot be compared because their members are unknown.
        # DDP reduces in C++, so a stack does not show its group: the others wait in theirs for who is in backward.
        groups = {observed[rank].call.get("group") for rank, place in inside.items() if place.op != "backward"}
        if blocked_s >= STALL_S and {place.op for place in inside.values()} == {"init_process_group"}:
            times = {"state": "meets", "since_s": 0.0, "worked_s": 0.0, "alive_s": blocked_s}
            fields = ((rank, place.file, {"frames": place.stack, **times}) for rank, place in inside.items())
            starts = {rank: LogFact("start", rank, file, fields=said) for rank, file, said in fields}
            return Startup(starts, tuple(inside), (), (), blocked_s) if len(inside) == job.world() else None
        if blocked_s >= STALL_S and groups == {"default"} and (roots := _roots_differ(job, observed, inside)):
            return roots
        if blocked_s >= STALL_S and "other" in groups and (crossed := between_groups(job, observed, inside)):
            return crossed
        divergence = compared(inside, job.world()) if blocked_s >= STALL_S else None
        if divergence is None or not divergence.culprits or ("other" in groups and not is_for_one_rank(divergence)):
            return None
        # Ranks meet in the store to make a group: the others may have made it, or another one, long before.
        if any(place.op == "new_group" for place in inside.values()) and not is_for_one_rank(divergence):
            return None
        # A rooted call returns on some ranks before the others: with equal sides, places do not show who called what.
        if divergence.tie and not {divergence.majority.wire.op, divergence.minority.wire.op}.isdisjoint(ROOTED):
            return None
        apart = out_of_round(observed, divergence.majority)
        if not apart <= {*divergence.culprits}:  # They diverged rounds ago: the lines do not show who did.
            return None
        divergence = replace(divergence, limit=OPEN) if apart else divergence
        counters = [observed[rank].counters for rank in (divergence.majority_rank, divergence.minority_rank)]
        return by_lines(divergence, *counters, default_group=groups == {"default"})
    idle = all(observed[rank].stopped or observed[rank].idle_s >= STALL_S for rank in outside)
    idle &= all(observed[rank].fixed_s >= STALL_S for rank in inside)
    holders = {observed[rank].lock_holder for rank in outside}
    named = tuple(rank for rank in inside if rank in holders) if holders <= inside.keys() else ()
    if (is_majority(len(outside), len(observed)) and not named) or not (idle or blocked_s >= STALL_S):
        return None
    files = {rank: dumps[rank].file if rank in dumps else observed[rank].file for rank in outside}
    return HostOutside(activities, files, inside, blocked_s, not idle, named)


def _roots_differ(
    job: JobState, observed: dict[int, Observation], inside: dict[int, InCollective]
) -> Divergence | None:
    """Return the rooted call in which ranks wait for different roots, while no rank is outside; None without one.

    A loop may take each rank as the root in turn, so its variables must be known and equal on these ranks.
    """
    calls = {(place.op, place.site): place for place in inside.values() if place.op in ROOTED and place.site}
    world = job.world()
    if len(inside) < world or len(calls) != 1:
        return None
    ((call, place),) = calls.items()
    ranks = [rank for rank, at in inside.items() if (at.op, at.site) == call]
    roots = {rank: root for rank in ranks if (root := observed[rank].root(world)) is not None}
    counters = [observed[rank].counters for rank in ranks]
    if len(roots) < len(ranks) or len({*roots.values()}) < 2 or not same_round(place.stack, place.time_s, counters):
        return None
    called = {rank: Described(Wire(place.op, (), (), root), place.op, f"root {root}") for rank, root in roots.items()}
    named = {rank: Call(KEY, 0, call, False, place.time_s, stack=place.stack) for rank, call in called.items()}
    return differing_roots(named, tuple(range(world)))


def places(
    observed: dict[int, Observation], dumps: dict[int, Stacks]
) -> tuple[dict[int, InCollective], dict[int, Activity]]:
    """Return where each rank communicates, and what each one does that does not; `dumps`: its last stacks."""
    stops = {rank: _inside(observed[rank], dumps.get(rank)) for rank in sorted(observed) if not observed[rank].stopped}
    inside = {rank: place for rank, place in stops.items() if place is not None}
    outside = (rank for rank in sorted(observed) if rank not in inside)
    return inside, {rank: _does(dumps.get(rank), observed[rank]) for rank in outside}


def _inside(observed: Observation, dump: Stacks | None) -> InCollective | None:
    """Return the communication that a rank waits in, or the wait for its device, which may be the same."""
    main = stacks.main_thread(dump) if dump is not None else None
    if dump is None or main is None:  # A wait whose purpose the kernel does not report is the best guess.
        unknown = observed.blocked_s >= STALL_S and activity.blocked_in_kernel(observed.last.wchan) is None
        return InCollective("", None, "process", observed.file) if unknown else None
    functions = {frame.function.rpartition(".")[2] for frame in main.frames if is_library(frame.file)}
    phase: Literal["", "forward", "backward"] = "forward" if "_call_impl" in functions else ""
    phase = "backward" if "_engine_run_backward" in functions else phase  # Recomputed layers run within it.
    threads, at = [main], activity.doing(dump)
    if at.doing in {"lock", "device"} or phase == "backward":  # Another thread may communicate on its behalf.
        threads += dump.threads
    place, frames = next(((place, thread.frames) for thread in threads if (place := _communicates(thread))), (None, ()))
    if place is None and at.doing in UNNAMED and at.frame is not None:
        place, frames = (UNNAMED[at.doing], at.frame), main.frames
    users = tuple(filter(stacks.is_users, frames))
    path = tuple(at for at in frames if stacks.is_users(at) or (_PACKAGE.search(at.file) and not stacks.is_native(at)))
    return InCollective(*place, "stacks", dump.file, None, users, dump.time_s, path, phase) if place else None


def _communicates(thread: Thread) -> tuple[str, Frame] | None:
    """Return the torch function in which a thread communicates, and the user's line; None if it does not."""
    site = next(filter(stacks.is_users, thread.frames), None)
    inner = next(filterfalse(stacks.is_native, thread.frames), None)
    if (collective := collective_of(thread.frames, whole=True)) or site is None or inner is None:
        return collective
    native = thread.frames[: thread.frames.index(inner)]
    if not is_library(inner.file) and any(activity.blocking_call(frame.function) == activity.STORE for frame in native):
        return None  # A key that another rank sets is no call that all ranks make.
    if any(_COMMUNICATES.search(frame.function) for frame in native):
        return inner.function.rpartition(".")[2] if is_library(inner.file) else "wait", site
    return None


def _does(dump: Stacks | None, observed: Observation) -> Activity:
    """Return a rank's activity outside, from its stack, otherwise from its kernel state and CPU time."""
    at = activity.doing(dump, observed.last.time_s) if dump is not None else activity.NOWHERE
    if observed.stopped:
        return Activity("stopped", activity.phrase("stopped"), at.frame)
    if at.doing not in {"unknown", "user code", "importing", "collective"}:
        return at
    if observed.busy:
        return Activity("computing", activity.phrase("computing"), at.frame)
    if (blocked := activity.blocked_in_kernel(observed.last.wchan)) is not None:
        return Activity(*blocked, at.frame)
    wchan = observed.last.wchan
    return replace(at, words=activity.phrase("in_kernel", wchan=wchan), aside="") if wchan else at


def between_groups(
    job: JobState, observed: Mapping[int, Observation], inside: Mapping[int, InCollective]
) -> CircularWait | Divergence | None:
    """Return how ranks wait for each other in calls of groups whose members are known; None if that is not certain.

    Groups in two variables of one function differ. So do those of two ranks that make the same call in a group of these
    two alone: in one group it would have completed. Stacks do not show what was called before, so the lines must show
    that no rank is a round of a loop ahead.
    """
    waits, everyone = WaitGraph(), tuple(range(job.world()))
    alike = grouped((observed[rank].members(rank, everyone), rank) for rank in inside)
    for ranks, same in ((ranks, same) for ranks, same in alike.items() if ranks):
        variables = {peer: observed[peer].call.get("name", "").rpartition(":") for peer in same}
        apart = len(same) == len(ranks) == 2 and len({inside[peer].op for peer in same}) == 1
        of_one, shown = len({function for function, *_ in variables.values()}) == 1, str(ranks)
        for rank in same:
            place, name = inside[rank], variables[rank][2] if of_one else ""
            of_group = GroupKey(KEY.recorder, f"{shown}:{rank if apart else name}", name or "undefined")
            key = of_group if observed[rank].call["group"] == "other" else KEY
            described = Described(Wire(operation(place.op), (), ()), place.op)
            waits.add(rank, Operation(key, 0), Call(key, 0, described, False, place.time_s, stack=place.stack))
            job.survey.declared[key] = ranks
    for at, waiting in waits.waiting.items():
        waits.absent[at] = tuple(sorted({*job.survey.declared[at.key]}.difference(waiting)))
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
        return bool(conditions(first, second) and conditions(second, first))
    at = first.stack[0]
    is_read = source_text.place(at.file, [at.line], at.line, first.created_s) != "unknown"
    return is_read and source_text.condition(at, first.created_s)[0] == "none"
