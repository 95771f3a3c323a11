"""A rank is slow, not stuck: every call completed, and one rank repeatedly arrived long after the others."""

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.node_health import node_health
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.artifacts import PAUSED
from diagnostics.contract.findings import LIKELY, POSSIBLE, SEEN, SUSPECTED, Cost, EvidenceItem, Finding
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Frame
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.inspector import MAX_CALLS, Communicator, InspectorFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingSample

_TEXTS = Texts(__file__)
_BY_CHANCE = 0.5
"""Share of the lost time that the late rank waited for a CPU core, from which on other programs made it late."""
_MISSING = _TEXTS.phrase("stacks")
LATE_S = 0.2  # A rank that arrives this long after the previous one is late.
TIMES, ONCE_S = 3, 10.0
"""Late arrivals, or one as long as a wait that counts as a stall (`job_state.STALL_S`), required for a straggler."""
NEVER_BACK = 3
"""If a rank is late once and equally late at this many positions up to the end of the record, its peers did not wait
for it: its clock was set. Two positions may be calls that its peers had already enqueued."""
SHARE_OF_TIME = 0.25  # Fraction of the recorded time that others lost by waiting for it.
SHARE_OF_RUN = 0.02  # Fraction of the time of a run, or of its record, below which a suspension is not reported.
SHARE_OF_LATE = 0.8  # Fraction of all time lost that was lost to this rank.
ENOUGH = 5  # Minimum samples of a rank's main thread at a place: half a second there.
PEERS = 15  # Ranks whose samples are read for comparison, spread over all ranks.
PEERS_SHARE = 0.5  # A place where a peer is at least this often is where everybody spends time.
_TOGETHER = {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"}
"""NCCL functions from which no rank returns before all have arrived."""


class Straggler(Struct, frozen=True):
    """Lateness of one rank in one group."""

    key: GroupKey
    rank: int
    times: int
    lost_s: float
    worst_s: float
    position: int
    window_s: float
    call: Call | None = None
    """The call at which it was latest."""
    seen_at: tuple[Frame, int, int] | None = None
    """The line at which its ring sampled it between collectives while its peers were elsewhere, with the number of
    samples there and in total."""
    core_wait_s: float = 0.0
    """How much longer than the rank with the shortest core wait it was runnable and waiting for a core."""
    suspended: bool = False
    """Whether its process was suspended in that time, so that none of its code made it late; no position is known."""
    files: tuple[str, ...] = ()
    """Files that show the lateness, if it is not derived from the ranks' calls."""


def decide(stall: Stall) -> Finding:
    """Decide from the times at which ranks reached the same positions."""
    case, job = late_rank(stall.job), stall.job
    if case is None:
        maybe = _parts.left_open(_TEXTS.phrase("maybe", who=stall.unexplained), _MISSING, basis=stall.unexplained_basis)
        return _parts.unconfirmed(
            stall, _MISSING, otherwise=lambda of, waits: maybe if waits and of.unexplained else None
        )
    frame, times, samples = case.seen_at or (None, 0, 0)
    seen = _parts.where(case.rank, frame, _TEXTS.phrase("samples", times=times, samples=samples))
    others = tuple(rank for rank in job.survey.members(case.key) if rank != case.rank)
    reached = case.call.cited() if case.call else f"position {case.position:,}"
    by_chance = case.core_wait_s >= _BY_CHANCE * case.lost_s
    when = _TEXTS.phrase("often" if case.times > 1 else "once", case=case)
    # Gloo marks failed and completed calls alike, so another recorder may show more.
    pending = any((at.seq, at.key.name) == (case.position, case.key.name) for at in job.waits.waiting)
    then = _TEXTS.phrase("failed" if pending else "completed")
    rows = "suspended" if case.suspended else ("default", "by_chance") if by_chance else "default"
    kind, shows = ("watch", "pauses") if case.suspended else ("inspector", "times")
    return _parts.confirmed(
        job,
        _TEXTS.facts(rows, case=case, reached=reached, when=when, then=then, others=ranks_spoken(others)),
        SEEN if case.suspended else SUSPECTED if by_chance else POSSIBLE if pending else LIKELY,
        seen={} if case.suspended else {case.rank: _TEXTS.phrase("late", when=when)},
        ranks=(case.rank,),
        victims=others,
        group=_parts.group(job.survey, case.key),
        position=case.position or None,
        where=(*seen, *_parts.where(case.rank, case.call, _parts.says("arrives_late"))),
        cost=Cost(round(case.lost_s, 2), "s blocked"),
        evidence=[EvidenceItem(kind, file, _TEXTS.phrase(shows)) for file in case.files],
    )


def late_rank(job: JobState) -> Straggler | None:
    """Return the rank that cost the most time over all groups; None if ranks wait for another or calls differ."""
    if job.evidence.doubt:
        return None
    suspension = suspended(job)
    if job.waits.waited_for() or job.waits.incomparable():
        return None if job.stands_still() else suspension
    cases = [case for key in sorted(job.survey.groups) if (case := _late(job, key)) is not None] or [*_by_times(job)]
    worst = max(cases, key=lambda case: case.lost_s, default=None)
    if worst is None or (suspension and suspension.lost_s >= worst.lost_s / 2):
        return suspension
    call = next((call for call in job.reading.calls(worst.rank, worst.key) if call.seq == worst.position), None)
    run = job.evidence.run
    seen_at = stands_out(job.evidence.handles(RingFile), worst.rank, run.attempt if run else None)
    waits_s = dict(wait for node in node_health(job.evidence) for wait in node.core_waits_s)
    core_wait_s = waits_s.get(worst.rank, 0.0) - min(waits_s.values(), default=0.0)
    return replace(worst, call=call, seen_at=seen_at, core_wait_s=core_wait_s)


def suspended(job: JobState) -> Straggler | None:
    """Return the rank whose process was suspended longest; None if that cost little, or if all ranks were."""
    pauses = {fact.rank: fact.fields["pauses"] for fact in job.evidence.facts if fact.kind == PAUSED}
    if not pauses or len(pauses) >= job.world():
        return None
    lost = {rank: sum(lasted_s for _, lasted_s in times) for rank, times in pauses.items() if rank is not None}
    rank, lost_s = max(lost.items(), key=lambda item: item[1])
    events = job.evidence.run.events.values() if job.evidence.run is not None else ()
    started_s = [event["time_s"] for own in events for event in own if event.get("name") == "start"]
    spans_s = [table.arrivals.span_s() for table in job.survey.groups.values()]
    window_s = max([(job.now_s() or 0.0) - min(started_s)] if started_s else spans_s, default=0.0)
    key = next((key for key in sorted(job.survey.groups) if rank in job.survey.members(key)), None)
    if key is None or lost_s < max(ONCE_S, SHARE_OF_RUN * window_s):
        return None
    worst_s = max(lasted_s for _, lasted_s in pauses[rank])
    files = tuple(fact.file for fact in job.evidence.facts if fact.kind == PAUSED and fact.rank == rank)
    return Straggler(key, rank, len(pauses[rank]), lost_s, worst_s, 0, window_s, suspended=True, files=files)


def _late(job: JobState, key: GroupKey) -> Straggler | None:
    table = job.survey.groups[key]
    arrivals = table.arrivals.positions()
    members = len(job.survey.members(key))
    full = [arrival for arrival in arrivals if arrival[3] >= members > 1]
    if len(full) < 2:
        return None
    is_one_rank = len({rank for _, rank, *_ in full}) == 1
    offset_s = min(late_s for _, _, late_s, *_ in full) if is_one_rank else 0.0
    lost: dict[int, list[tuple[float, int]]] = {}
    before_s, apart, unmet = full[0][4], 0, -1  # Positions, and the rank, since the ranks last arrived within LATE_S.
    for position, rank, late_s, _, at_s in full[1:]:
        if at_s < before_s - LATE_S:
            return None  # A clock was set back: no rank passes its positions in another order.
        again = at_s - before_s < late_s / 2  # The delay of the previous position, observed again.
        before_s = at_s
        if late_s - offset_s < LATE_S:
            unmet = -1
        elif again:
            apart += 1
        else:
            lost.setdefault(rank, []).append((late_s - offset_s, position))
            apart, unmet = 0, rank
    if unmet >= 0 and apart >= NEVER_BACK:
        lost[unmet].pop()
    if not any(lost.values()):
        return None
    sums_s = {rank: sum(seconds for seconds, _ in times) for rank, times in lost.items()}
    rank = max(sums_s, key=lambda rank: sums_s[rank])
    worst_s, position = max(lost[rank])
    window_s = table.arrivals.span_s()
    often = len(lost[rank]) >= TIMES and sums_s[rank] >= SHARE_OF_TIME * window_s
    if (often or worst_s >= ONCE_S) and sums_s[rank] >= SHARE_OF_LATE * sum(sums_s.values()):
        return Straggler(key, rank, len(lost[rank]), sums_s[rank], worst_s, position, window_s)
    return None


def _by_times(job: JobState) -> Iterator[Straggler]:
    """Yield the rank that repeatedly arrived last at a communicator, by how long each rank was in each call.

    All ranks leave a call of these functions at about the same time, so that the one with the shortest time came last,
    and the one with the next shortest waited for it alone. No clocks are compared, so any time is worth counting.
    """
    files = job.evidence.handles(InspectorFile)
    processes = [*loaded(files, lambda file: file.load(MAX_CALLS // len(files)), job.evidence.problems)]
    world = max((of[0].size for _, of in processes), default=0)
    groups: dict[str, dict[int, tuple[str, Communicator]]] = {}
    for handle, communicators in processes:
        if communicators[0].size == world:  # Its rank in the communicator is the global one.
            for own in communicators:
                groups.setdefault(own.id, {})[communicators[0].rank] = handle.file, own
    for name, members in sorted(groups.items()):
        times = {rank: own.calls for rank, (_, own) in members.items()}
        window_s = max(own.last_s for _, own in members.values()) - min(own.first_s for _, own in members.values())
        if len(members) < 2 or any(own.size != len(members) for _, own in members.values()) or window_s <= 0:
            continue
        lost: dict[int, list[tuple[float, int]]] = {rank: [] for rank in members}
        for call in set.intersection(*(set(calls) for calls in times.values())):
            if call[0] in _TOGETHER:
                (least_s, rank), (next_s, _) = nsmallest(2, ((calls[call], rank) for rank, calls in times.items()))
                lost[rank].append((next_s - least_s, call[1]))
        sums_s = {rank: sum(late_s for late_s, _ in late) for rank, late in lost.items()}
        rank = max(sums_s, key=lambda rank: sums_s[rank])
        enough = sums_s[rank] >= max(SHARE_OF_TIME * window_s, SHARE_OF_LATE * sum(sums_s.values()))
        if enough and len(lost[rank]) >= TIMES:
            key, (worst_s, position) = GroupKey(InspectorFile.kind, name, "undefined"), max(lost[rank])
            job.survey.declared.setdefault(key, tuple(sorted(members)))
            shown = tuple(members[member][0] for member in sorted(members, key=lambda member: member != rank)[:2])
            yield Straggler(key, rank, len(lost[rank]), sums_s[rank], worst_s, position, window_s, files=shown)


def stands_out(rings: Iterable[RingFile], rank: int, attempt: int | None) -> tuple[Frame, int, int] | None:
    """Return the line at which a rank was sampled more often than its peers, how often, and of how many samples."""
    own: tuple[RingSample, ...] = ()
    peers: dict[tuple[str, int], int] = {}
    ordered = sorted(rings, key=lambda ring: ring.rank if ring.rank is not None else -1)
    others = [ring for ring in ordered if ring.rank != rank]
    some = others[:: max(1, -(-len(others) // PEERS))]  # Enough to determine where most ranks are.
    for _, dump in loaded((*(ring for ring in ordered if ring.rank == rank), *some), lambda file: file.read()):
        if attempt is None or dump.attempt == attempt:
            own = dump.samples if dump.rank == rank else own
            for sample in dump.samples if dump.rank != rank else ():
                place = (sample.file, sample.line)
                peers[place] = max(peers.get(place, 0), sample.times)
    for sample in own:
        if sample.times >= ENOUGH and peers.get((sample.file, sample.line), 0) <= PEERS_SHARE * sample.times:
            frame = Frame(sample.file, sample.line, sample.function)
            return frame, sample.times, sum(other.times for other in own)
    return None


CAUSE = declared(__file__, explain, decide)
