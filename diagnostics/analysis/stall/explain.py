"""Computes why a job stands still, once for all causes of hangs; each part of the analysis uses its own evidence.

The parts are built independently; the relations between causes (`explained_by`) say which cause explains others.
Waits in groups whose calls differ are no evidence for any part (`WaitGraph.incomparable`).
"""

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence import same_role
from diagnostics.analysis.divergence.find import Divergence, find as find_divergences
from diagnostics.analysis.divergence.single_calls import differing_roots
from diagnostics.analysis.histories.one_rank import SNAPSHOTS, Line
from diagnostics.analysis.histories.watchdog_lines import GroupLog
from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall import circular, endings, job_state, late
from diagnostics.analysis.stall.circular import CircularWait
from diagnostics.analysis.stall.endings import Departure, FirstEndings, Missing, departure
from diagnostics.analysis.stall.from_observations import from_observations
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.late import HostStall
from diagnostics.analysis.stall.size_mismatch import at_met_sizes, size_mismatch
from diagnostics.analysis.stall.stack_evidence import HostOutside, by_stacks, makes_group_alone
from diagnostics.analysis.stall.startup import Meeting, Startup, StartupFailed, startup
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import SUSPECTED, Basis, Finding, Group
from diagnostics.contract.formatting import file_name
from diagnostics.evidence.calls import ROOTED, Call, GroupKey
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.model import Evidence

BEFORE = AFTER = 12  # A convention: number of positions that fit in the report's drawing.
_COMPARED = 8  # Ranks of each side whose calls in all groups are read: those of a side agree, so a few stand for all.
MAX_RANKS = 64  # Maximum number of ranks shown, the culprits first: the file of each is read again.
Point = tuple[GroupKey, int]  # A position in a group, as counted by one recorder.


def timeline(job: JobState, point: Point | None, culprits: Collection[int]) -> dict[str, Any] | None:
    """Return `measures.hang.timeline` at a point (None = that of the longest wait); None if nothing was recorded."""
    groups = job.survey.groups
    if point is None:
        collectives = (item for item in job.waits.calls.items() if item[0][1].peer < 0 and item[0][1].key in groups)
        waits = [(call.created_s or 0.0, operation) for (_, operation), call in collectives]
        if not waits:
            return None
        longest = min(waits)[1]
        point = longest.key, longest.seq
    key, middle = point
    lines = groups[key].lines
    first = [rank for rank in sorted(culprits) if rank in lines][:MAX_RANKS]
    others = [rank for rank in sorted(lines) if rank not in culprits]
    ranks = sorted(first + others[: MAX_RANKS - len(first)])
    rows = {str(rank): _row(lines[rank], job.reading.calls(rank, key), middle) for rank in ranks}
    positions = sorted({cell["position"] for row in rows.values() for cell in row})
    return {"group": key.label, "positions": positions, "ranks": rows} if positions else None


def point_of(job: JobState, group: Group, position: int) -> Point | None:
    """Return a position by the recorder in which a call differs or is pending there; None for an unknown group."""
    groups = job.survey.groups
    same_group = (group.name, group.desc or "undefined")
    keys = [key for key in sorted(groups) if (key.name, key.desc or "undefined") == same_group]
    differing = [key for key in keys if position in groups[key].deviations]
    pending = [key for key in keys if Operation(key, position) in job.waits.waiting]
    best = [*(key for key in differing if key.recorder == SNAPSHOTS), *differing, *pending, *keys]
    return (best[0], position) if best else None


def _row(line: Line, calls: list[Call], middle: int) -> list[dict[str, Any]]:
    return [
        {
            "position": call.seq,
            "op": call.user_op or call.wire.op,
            "signature": call.described.arguments,
            # The ring only records the start of an asynchronous call, unless later ones completed.
            "state": "completed"
            if call.done or call.seq <= line.done
            else ("issued", "pending")[call.completion_known],
            "where": f"{call.site.file}:{call.site.line} in {call.site.function}" if call.site else "",
            "place": f"{file_name(call.site.file)}:{call.site.line}" if call.site else "",
        }
        for call in calls
        if middle - BEFORE <= call.seq <= middle + AFTER
    ]


def waits_of(job: JobState) -> list[dict[str, Any]]:
    """Return the oldest pending call of each rank, the call of the most ranks first, in the fields of `Waiting`.

    Messages at one line of the program are one entry, whoever their peers are, and so are groups of one name.
    """
    now_s, rows = job.now_s(), dict[tuple[Any, ...], dict[str, Any]]()
    for operation, ranks in sorted(job.waits.waiting.items()):
        key, members = operation.key, len(job.survey.members(operation.key))
        for rank in (rank for rank in sorted({*ranks}) if job.waits_first_in(rank, operation)):
            call = job.waits.calls[rank, operation]
            # A send and a receive that were posted together are one wait.
            op = " and ".join(sorted(job.waits.halves.get(operation, ()))) or call.user_op or call.wire.op
            site = f"{file_name(call.site.file)}:{call.site.line}" if call.site else ""
            group, seq = (key.desc, None) if call.p2p else (key.label, call.seq)
            shown: dict[str, Any] = {"op": op, "seq": seq, "group": group, "site": site}
            row = rows.setdefault((*shown.values(),), shown | {"ranks": [], "members": members, "waited_s": 0.0})
            row["ranks"].append(rank)
            if call.p2p or len(row["ranks"]) > members or not job.survey.membership_known(key):
                row["members"] = None
            if now_s is not None and call.created_s:
                row["waited_s"] = max(row["waited_s"], round(now_s - call.created_s, 1))
    return sorted(rows.values(), key=lambda row: (-len(row["ranks"]), row["ranks"]))


class Stall(Struct):
    """Explanations of why ranks wait, filled by `explain`. Each cause of a hang reads its own part."""

    job: JobState
    divergences: tuple[Divergence, ...] = ()
    """The earliest divergence of the ranks' histories, and those of groups that it cannot have affected."""
    inferred: tuple[Divergence, ...] = ()
    """Those that waits, endings or lines of watchdogs show: which call was the first to differ may be unknown."""
    timeouts: GroupLog | None = None
    """A group whose timeouts do not show why its ranks wait."""
    stacks: HostOutside | None = None
    endings: tuple[FirstEndings, ...] = ()
    departure: Departure | None = None
    """Comparison of the calls of ranks that exited normally with those of the others."""
    missing: Missing | None = None
    circular: tuple[CircularWait, ...] = ()
    host: HostStall | None = None
    startup: Startup | StartupFailed | Meeting | None = None

    @property
    def unexplained(self) -> tuple[int, ...]:
        """Ranks that never arrived, by no known reason: they may have ended, or be in a call that is not recorded."""
        unknown = self.host.ranks if self.host and not self.host.has_stack else ()
        return (*unknown, *(self.stacks.ranks if self.stacks else ()))

    @property
    def unexplained_basis(self) -> Basis:
        """What it rests on that they did not arrive."""
        return "places" if self.stacks else "records"

    def measures_of(self, findings: Iterable[Finding]) -> dict[str, Any]:
        """Return the figures about the hang for the report, with the calls around the surest of these findings."""
        job = self.job
        ranks, groups, waiting = len(job.survey.ranks), len(job.survey.groups), len(job.waits.of_rank)
        hang: dict[str, Any] = {"ranks": ranks, "world_size": job.world(), "groups": groups}
        hang |= {"calls_compared": job.survey.positions, "ranks_waiting": waiting}
        if waiting and not (job.stands_still() or job.state or job.ended()):
            earlier = job.survey.taken_earlier
            hang |= {"taken_earlier": earlier} if earlier else {"young_s": round(job.waited_s(), 1)}
        confirmed = sorted((case for case in findings if case.status == "confirmed"), key=lambda case: -case.confidence)
        points = (point_of(job, case.group, case.position) for case in confirmed if case.group and case.position)
        culprits, point = {rank for case in confirmed for rank in case.ranks}, next(filter(None, points), None)
        if not confirmed and job.stands_still():
            hang["waits"] = waits_of(job)
        if (culprits or point) and (drawn := timeline(job, point, culprits)) is not None:
            hang["timeline"] = drawn
        return {"hang": hang}


def explain(evidence: Evidence, divergence: Divergence | None = None) -> Stall:
    """Explain the waiting in a job; `divergence`: the first difference of complete programs, None = find it."""
    job = job_state.build(evidence)
    if evidence.doubt:  # Exceptions and signals do not require a comparison of ranks.
        return Stall(job, endings=endings.first_endings(job))
    if job.finished():
        return Stall(job)
    divergences = [divergence] if divergence is not None else []
    if divergence is None:
        steps = job.evidence.declared("train.steps")
        early = {rank: (job.step_of(rank) or steps) < steps for rank in job.survey.ranks if isinstance(steps, int)}
        exited = [rank for rank, end in job.endings.items() if end.in_order]
        divergences = find_divergences(job.survey, job.reading.calls, job.waits.reaching, exited, early)
    if divergence is None and (divergence := _of_same_role(job, divergences)) is not None:
        divergences = [divergence]
    if divergence is not None:
        job.waits.differing |= {*job.survey.members(divergence.key), *divergence.vote.present}
    ended = endings.first_endings(job)
    in_order = endings.ended_in_order(ended)
    stands_still = job.stands_still()
    departed = departure(job, in_order.ranks) if in_order is not None else None
    logged, host = late.by_watchdogs(job), late.late_hosts(job) if stands_still else None
    # No recorder shows that a rank makes a group.
    if isinstance(host, HostStall) and not host.has_stack:
        host = makes_group_alone(job, host.operation, host.ranks) or host
    waits, sizes = circular.circular_waits(job), size_mismatch(job)
    single = (logged, sizes, *waits, host, departed, *roots_differ(job))
    stall = Stall(
        job,
        divergences=tuple(divergences),
        inferred=tuple(case for case in single if isinstance(case, Divergence)),
        timeouts=logged if isinstance(logged, GroupLog) else None,
        endings=ended,
        departure=departed,
        missing=endings.missing_ranks(job),
        circular=tuple(wait for wait in waits if not isinstance(wait, Divergence)),
        host=next((case for case in (logged, host) if isinstance(case, HostStall)), None),
        startup=startup(job),
    )
    observed = observations(evidence)
    seen = from_observations(job, observed) if observed else by_stacks(job) or at_met_sizes(job)
    if isinstance(seen, Divergence) and seen.limit < 1:
        stall.inferred += (seen,)
    elif isinstance(seen, Divergence):
        stall.divergences += (seen,)
    elif isinstance(seen, Startup):
        stall.startup = stall.startup or seen
    elif isinstance(seen, CircularWait):
        stall.circular += (seen,)
    else:
        stall.stacks = seen
    # An exception of its own in the thread that makes a call leaves it out, too, on whatever rank.
    errors = (fact.fields for fact in evidence.facts if fact.kind == "side_error")
    own = [e for e in errors if not is_victim(kind_of_exception(e["type"], e["message"], e["frames"]))]
    died = {(at.file, at.function) for error in own for at in error["frames"]}
    doubted = [case for case in stall.divergences if any((at.file, at.function) in died for at in case.majority.stack)]
    stall.divergences = tuple(case for case in stall.divergences if case not in doubted)
    stall.inferred += tuple(replace(case, limit=SUSPECTED) for case in doubted)
    return stall


def roots_differ(job: JobState) -> list[Divergence]:
    """Return the divergences of rooted operations that all issued and only some completed, from dumps without roots."""
    cases, taken = list[Divergence](), job.waits.incomparable()
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = {rank: job.waits.calls[rank, operation] for rank in waiting}
        wire, complete = calls[waiting[0]].wire, tuple(job.waits.complete[operation])
        lacks_root = operation.key.recorder == "gloo" and wire.op in ROOTED and wire.root is None
        if lacks_root and complete and not (job.waits.absent[operation] or set(waiting) & taken):
            cases.append(differing_roots(calls, job.survey.members(operation.key)))
            taken |= {*waiting, *complete} | job.waits.reaching(waiting)
    return cases


def _of_same_role(job: JobState, divergences: list[Divergence]) -> Divergence | None:
    """Return how ranks deviate from others of their role, in all groups together, if single groups show less."""
    if not job.stands_still() or not (divergences or job.waits.calls):
        return None
    if divergences and not all(case.tie for case in divergences):
        return _as_rounds(job, divergences[0]) if len(divergences) == 1 else None
    roots, cycles = job.waits.roots(), job.waits.cycles()
    if not divergences and not cycles and roots and not any(rank in job.waits.of_rank for rank in roots):
        return None  # They are late or missing, which no comparison of calls shows.
    recorders = sorted({key.recorder for key in job.survey.groups}, key=lambda name: (name == SNAPSHOTS, name))
    tied = {rank for divergence in divergences for rank in divergence.vote.present}
    among = [*tied, *(rank for cycle in cycles for rank in cycle.ranks), *roots, *sorted(job.survey.ranks)]
    by_role = (same_role.find(job.survey, job.reading.history, recorder, among) for recorder in recorders)
    case = next(filter(None, by_role), None)
    if case is None or (divergences and not set(case.culprits) <= tied):
        return None
    calls = case.minority_rank, case.minority, case.majority_rank, case.majority
    return None if case.turned and circular.comes_later(job, *calls) is not False else case


def _as_rounds(job: JobState, divergence: Divergence) -> Divergence | None:
    """Return the same divergence as rounds of a loop, if only the calls of several groups together show that."""
    rounds = {"fewer_iterations", "more_iterations"}
    ranks = [*divergence.culprits[:_COMPARED], *divergence.peers[:_COMPARED]]
    recorder = divergence.key.recorder
    if divergence.kind in rounds or sum(key.recorder == recorder for key in job.survey.ranks[ranks[0]].lines) < 2:
        return None
    case = same_role.find(job.survey, job.reading.history, recorder, ranks)
    if case is None or case.kind not in rounds or {*case.culprits} != {*divergence.culprits[:_COMPARED]}:
        return None
    return replace(case, culprits=divergence.culprits, vote=replace(case.vote, sides=divergence.vote.sides))
