"""Compares the places of ranks without recorded calls, from tracebacks of timeouts and from stacks. These do not show
earlier calls: they can only prove that a host is blocked outside of collectives, or which lines differ.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import CERTAIN_AFTER, OCCASIONAL
from diagnostics.analysis.divergence.explanation import by_condition
from diagnostics.analysis.divergence.find import Divergence, between
from diagnostics.analysis.divergence.identity import shared_path, split_at
from diagnostics.analysis.divergence.loop_exit import conditions, source_branches
from diagnostics.analysis.divergence.single_calls import is_for_one_rank
from diagnostics.analysis.histories import watchdog_lines
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.vote import count_votes
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import SURE
from diagnostics.evidence.calls import NEEDS_ALL, TRANSFERS, Call, Described, GroupKey, Wire, is_library, operation
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.flight_entries import DEFAULT_GROUP
from diagnostics.evidence.model import Frame, Stacks
from diagnostics.evidence.stacks import activity, dumps as stacks
from diagnostics.evidence.stacks.activity import Activity
from diagnostics.evidence.stacks.dumps import taken_s

_C10D = "distributed_c10d.py"
_MESSAGES, _WITHIN, UNNAMED = (dict[str, str](names) for names in table_beside(__file__).values())
"""Functions of torch that communicate in C++ and raised the error by which a rank gave up, with the call's name."""
KEY = GroupKey("stacks", "0", DEFAULT_GROUP)
CREATES = "init_process_group", "new_", "split_group"
"""How the names of the functions begin that create a group, in which its ranks or those of the job meet."""
_UNKNOWN = 0  # Position of a call for which no recorder counted the preceding ones.


class InCollective(Struct, frozen=True):
    """Location of a rank in a collective."""

    op: str
    site: Frame | None
    """The user's line; None if no stack could be captured."""
    kind: str
    """Kind of the file that shows it: `stacks`, `log`, `error`."""
    file: str
    line: int | None = None
    stack: tuple[Frame, ...] = ()
    """The user's frames, innermost first."""
    time_s: float | None = None
    """Latest possible time of this location (s since 1970); None = not known."""
    path: tuple[Frame, ...] = ()
    """The user's frames and those of packages outside torch, which may make the call; empty = not known."""
    phase: Literal["", "forward", "backward"] = ""
    """The pass of a model in which it communicates, by torch's frames."""


class HostOutside(Struct, frozen=True):
    """Ranks whose hosts are outside the collective in which all others wait."""

    activities: dict[int, Activity]
    """Activity of each rank that is outside."""
    files: dict[int, str]
    """Rank -> the stack dump that shows it."""
    inside: dict[int, InCollective]
    blocked_s: float = 0.0
    """How long the other ranks were observed waiting."""
    working: bool = False
    """Whether a rank outside made progress or computed in that time."""
    holders: tuple[int, ...] = ()
    """The ranks inside that hold the file locks for which all ranks outside wait."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are outside."""
        return tuple(self.activities)


def by_stacks(job: JobState) -> Divergence | HostOutside | None:
    """Compare the places of the ranks; return None if their calls were recorded or if a rank is gone.

    Only the source shows why two lines differ. It must be older than the stack, and the rank must have waited there
    until its timeout: a rank whose connection was closed may have reached the line afterwards.
    """
    # Gloo marks a failed call as completed, so ranks that are all one call ahead of the others may wait in it.
    counted = [table.lines for key, table in job.survey.groups.items() if key.recorder == "gloo"]
    is_whole = len(counted) == 1 and not job.waits.of_rank and len(counted[0]) >= job.world()
    issued = {rank: line.issued for rank, line in counted[0].items()} if is_whole else {}
    ahead = {rank for rank, count in issued.items() if count == max(issued.values()) == min(issued.values()) + 1}
    early = {rank for rank, end in job.endings.items() if end.exited_early}
    if (job.any_calls() and not ahead) or early - job.met_sizes():
        return None
    latest, inside = job.latest_stacks(), communicating(job, ahead)
    if ahead and ahead != set(inside):
        return None
    outside = {rank: dump for rank, dump in latest.items() if rank not in inside}
    calls = {(place.op, place.site) for place in inside.values()}
    if len(calls) == 1 and outside and job.stands_still():
        activities = {rank: activity.doing(dump, taken_s(job.evidence, dump)) for rank, dump in sorted(outside.items())}
        doing = {at.doing for at in activities.values()}
        if doing & {"unknown", "collective", "importing"} or ("user code" in doing and not job.gave_up()):
            return None  # Whoever computes may only be slow, unless the job's own watchdog has waited long enough.
        files = {rank: outside[rank].file for rank in activities}
        return HostOutside(activities, files, inside, working="user code" in doing)
    if len(calls) == 2 and not outside and not {op for op, _ in calls} <= TRANSFERS:
        divergence = compared(inside, job.world())
        if divergence is not None and divergence.culprits and _explained_by_source(divergence):
            return replace(divergence, groups_known=False)
    return None


def makes_group_alone(job: JobState, at: Operation, others: Collection[int]) -> Divergence | None:
    """Return the call that makes a group on some ranks alone by the source, although all ranks must make it.

    All other calls matched if the `others` made all before the one `at` which ranks wait: then any condition counts.
    """
    if (divergence := compared(communicating(job, whole=True), job.world())) is None:
        return None
    creating = [call for call in (divergence.majority, divergence.minority) if call.wire.op.startswith(CREATES)]
    if creating == [divergence.minority] and is_for_one_rank(divergence):
        return replace(divergence, groups_known=False)
    lines, by_source = job.survey.groups[at.key].lines, by_condition(divergence.majority, divergence.minority)
    matched = all(rank in lines and lines[rank].issued == at.seq - 1 for rank in others)
    is_alone = matched and by_source is not None and [*by_source.calls] == creating
    return replace(divergence, explanation=by_source, groups_known=False) if is_alone else None


def made_by_one_rank(job: JobState, end: Ending) -> bool:
    """Return whether the source lets one rank alone make the call, due of all, in which an error ended a rank."""
    op, _ = collective_of(end.frames) or ("", None)
    when_s = taken_s(job.evidence, Stacks(None, end.record.file, ()))
    met = (source_text.condition(at, when_s)[0] for at in end.frames if stacks.is_users(at))
    return operation(op) in NEEDS_ALL and "one rank" in met


def communicating(job: JobState, ahead: Collection[int] = (), *, whole: bool = False) -> dict[int, InCollective]:
    """Return the call that each rank is in, from the error with which it gave up on a peer or gloo ended it, else from
    its last stack.

    The stacks of ranks that are `ahead` also count if they communicate in C++, with `whole` those that make a group.
    """
    inside, met = dict[int, InCollective](), job.met_sizes()
    for rank, end in job.endings.items():
        if (end.victim or rank in met) and (collective := collective_of(end.frames)):
            time_s = None if end.connection_closed else taken_s(job.evidence, Stacks(None, end.record.file, ()))
            users = tuple(filter(stacks.is_users, end.frames))
            inside[rank] = InCollective(*collective, end.record.kind, end.record.file, end.record.line, users, time_s)
    for rank, dump in job.latest_stacks().items():
        frames = thread.frames if rank not in inside and (thread := stacks.main_thread(dump)) is not None else ()
        if (collective := collective_of(frames, _WITHIN if rank in ahead else _MESSAGES, whole=whole)) is not None:
            users = tuple(filter(stacks.is_users, frames))
            inside[rank] = InCollective(*collective, "stacks", dump.file, None, users, taken_s(job.evidence, dump))
    return dict(sorted((inside | _reported(job, inside)).items()))


def _reported(job: JobState, inside: Mapping[int, InCollective]) -> dict[int, InCollective]:
    """Return the call in which watchdogs reported other ranks, if all are in that one."""
    waits = [wait for group in watchdog_lines.read_all(job.evidence) for wait in group.waits.values()]
    places = {(place.op, place.site) for place in inside.values()} or {(wait.name, wait.site) for wait in waits}
    if len(places) != 1 or len({(wait.name, wait.seq, wait.counted) for wait in waits}) != 1 or not waits[0].counted:
        return {}
    ((op, site),) = places
    facts = {wait.rank: wait.fact for wait in waits if wait.name == op and wait.rank not in inside}
    return {rank: InCollective(op, site, "log", fact.file, fact.line) for rank, fact in facts.items()}


def compared(inside: Mapping[int, InCollective], world: int) -> Divergence | None:
    """Compare the current calls of all ranks like recorded calls; return None if one is unknown or all are equal.

    Their sizes are unknown, so calls from two lines count as different.
    """
    stacks_of = {rank: place.stack for rank, place in inside.items()}
    if all(place.path and place.stack for place in inside.values()) and any(
        split_at(*pair) is None for pair in combinations(dict.fromkeys(stacks_of.values()), 2)
    ):
        # The user's frames part in a package, whose inner frames are left out below a frame of the user's.
        level = len(shared_path(place.path[::-1] for place in inside.values()))
        for rank, place in inside.items():
            outer = place.path[place.path.index(place.stack[0]) :]
            stacks_of[rank] = outer if len(outer) > level else place.path
    places = {rank: (place.op, place.phase, stacks_of[rank]) for rank, place in inside.items()}
    lines = count_votes(KEY, _UNKNOWN, places).sides
    if len(inside) < world or len(lines) < 2 or not all(stacks_of.values()):
        return None

    def call(rank: int, number: int = 0) -> Call:
        place = inside[rank]
        described = Described(Wire(operation(place.op), (number,), ()), place.op)
        return Call(KEY, _UNKNOWN, described, False, place.time_s, stack=stacks_of[rank], region=place.phase)

    # The stages of a pipeline are in branches of one step, and the root of a broadcast goes on before others of its
    # line. Compared with ranks elsewhere they are one side.
    joined: list[tuple[int, ...]] = []
    for ranks in lines:
        own = call(ranks[0])
        alike = (side for side in joined if stacks_of[side[0]] == own.stack or source_branches(call(side[0]), own))
        same = next(alike, None)
        joined = [(*side, *ranks) if side is same else side for side in joined] if same else [*joined, ranks]
    sides = joined if len(joined) > 1 else lines
    numbers = {rank: number for number, ranks in enumerate(sides) for rank in ranks}
    return between(count_votes(KEY, _UNKNOWN, numbers, range(world)), lambda rank, _: [call(rank, numbers[rank])])


def _explained_by_source(divergence: Divergence) -> bool:
    """Return whether the source explains why the lines differ, so that the order need not be guessed.

    A call after the loop does so only if neither call is in a branch: calls in a branch may have matched others of the
    peers for a while, so that the ranks may have diverged long before.
    """
    names, calls = {term.name for term in divergence.explanation.terms}, (divergence.majority, divergence.minority)
    # Of two equal sides, the one that skipped a call may be at fault as well as the one that made it.
    met = conditions(*calls) | conditions(*calls[::-1])
    skipped = divergence.vote.tie and bool(met.keys() & {"unless", "all but one"})
    is_explained = bool({"source branches", "source one rank"} & names) or (names >= OCCASIONAL and not skipped)
    if names & CERTAIN_AFTER:
        is_explained = not met
    return is_explained and divergence.confidence >= SURE


def collective_of(
    frames: Iterable[Frame], within: Mapping[str, str] = _WITHIN, *, whole: bool = False
) -> tuple[str, Frame] | None:
    """Return the collective that the user's innermost frame calls (`whole`: or making a group), and that frame."""
    op = ""
    for frame in frames:
        if not (stacks.is_native(frame) or is_library(frame.file)):
            own = not whole and op.startswith(("_", *CREATES))
            return (op, frame) if op and not own else None
        function = frame.function.rpartition(".")[2]
        op = function if frame.file.endswith(_C10D) else op or within.get(function, "")
    return None
