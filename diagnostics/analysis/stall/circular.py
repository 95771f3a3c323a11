"""Cycles of the wait-for graph by kind: groups used in different orders, point-to-point calls, a missed call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence import loop_exit
from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.explanation import program_order
from diagnostics.analysis.divergence.find import Divergence, edited
from diagnostics.analysis.divergence.identity import on_path
from diagnostics.analysis.divergence.loop_exit import conditions, for_one_rank, source_branches
from diagnostics.analysis.divergence.single_calls import passed
from diagnostics.analysis.stall.job_state import JobState, short
from diagnostics.analysis.stall.rounds import Departure, departure, rounds, step_of
from diagnostics.analysis.vote import count_votes, settled
from diagnostics.analysis.wait_graph.graph import Cycle, Operation, same_tag
from diagnostics.contract.findings import ASSUMED, POSSIBLE, PROBABLE, SEEN
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.stacks.dumps import is_users, main_thread


class Side(Struct, frozen=True):
    """Ranks of a cycle that wait in one operation."""

    ranks: tuple[int, ...]
    operation: Operation
    call: Call
    """The call of the first rank."""
    waited_for: tuple[int, ...]
    """Ranks of the cycle that did not reach the operation."""


class GroupOrder(Struct, frozen=True):
    """Ranks that use process groups in different orders."""

    cycle: Cycle
    sides: tuple[Side, ...]
    culprits: tuple[int, ...]
    """The ranks not on the largest side; all ranks if no side is larger than the others."""
    proven: bool
    """Whether the culprits left no call out: they enqueued both, or the source leads them on to the others' call."""


class OutOfStep(Struct, frozen=True):
    """A rank that departs from its own earlier rounds, or makes the same calls more or less often than most ranks."""

    rank: int
    departs: Departure | None = None
    now: int = 0
    most: int = 0
    """How often it and most ranks made the calls in this round, if no departure shows."""


class PointToPoint(Struct, frozen=True):
    """Ranks that wait in a send or receive whose counterpart is never posted."""

    cycle: Cycle
    calls: tuple[tuple[int, Call], ...]
    """Rank and call of each rank that waits in a send or receive."""
    in_collectives: tuple[tuple[int, Call], ...]
    """Rank and call of each rank in the cycle that waits in a collective instead."""
    out_of_step: tuple[OutOfStep, ...] = ()
    """Ranks that changed what they do in a round, or that did not change it as most did."""
    confidence: float = ASSUMED
    """How sure it is that these ranks are at fault, or else that all ranks of the cycle are."""
    scheduled: bool = False
    """Whether a stack shows torch's pipeline schedule, whose messages match if all stages follow the same one."""
    of_stages: bool = False
    """Whether they are stages of a pipeline, torch's or the job's own, whose ends make fewer kinds of calls."""
    tags_differ: bool = False
    """Whether two ranks wait for each other in the two halves of a message that differ only in their tags."""


CircularWait = GroupOrder | PointToPoint


def circular_waits(job: JobState) -> list[CircularWait | Divergence]:
    """Return the cycles of waiting ranks, smallest rank first; empty while the job may still make progress.

    A divergence explains a cycle in which a rank skipped a call.
    """
    if not job.stands_still():
        return []
    cases: list[CircularWait | Divergence] = []
    taken = job.waits.incomparable()
    for cycle in job.waits.cycles():
        if not set(cycle.ranks) & taken:
            cases.append(_case(job, cycle))
            taken |= set(cycle.ranks) | job.waits.reaching(cycle.ranks)
    if not job.waits.waited_for() and (crossed := _enqueued_crosswise(job)) and not set(crossed.cycle.ranks) & taken:
        cases.append(crossed)
    if not cases and (passed := _passed(job)) and not set(passed.cycle.ranks) & taken:
        cases.append(passed)
    return cases


def _enqueued_crosswise(job: JobState) -> GroupOrder | None:
    """Return two collectives enqueued by all in different orders, and completed by none on in-order devices."""
    waits = job.waits
    shared = (call for call, ranks in sorted(waits.waiting.items()) if set(ranks) == set(job.survey.members(call.key)))
    ordered = (call for call in shared if call.peer < 0 and call.key.on_devices)
    stuck = [call for call in ordered if not waits.complete[call]]
    for earlier, later in combinations(stuck, 2):
        first = dict[int, Operation]()
        for rank in {*waits.waiting[earlier]} & {*waits.waiting[later]}:
            times = [waits.calls[rank, operation].created_s for operation in (earlier, later)]
            if None not in times and times[0] != times[1]:
                first[rank] = earlier if times[0] < times[1] else later  # type: ignore[operator]
        vote = count_votes(earlier.key, earlier.seq, first)
        lines = (job.survey.groups[at.key].lines for at in (earlier, later))
        ends = [len({own[rank].issued for rank in first}) for own in lines]
        if len(vote.sides) > 1 and (1 not in ends or ends == [1, 1]):  # Else one left out a call and caught up.
            named = ((side, first[side[0]], {*vote.present} - {*side}) for side in sorted(vote.sides))
            sides = tuple(Side(on, at, waits.calls[on[0], at], tuple(sorted(rest))) for on, at, rest in named)
            return GroupOrder(Cycle(vote.present, (earlier, later)), sides, vote.minority, proven=True)
    return None


def _case(job: JobState, cycle: Cycle) -> CircularWait | Divergence:
    waits, messages = job.waits, [operation for operation in cycle.operations if operation.peer >= 0]
    if not messages:
        order = _group_order(job, cycle)
        return (None if order.proven else _missed_call(job, cycle)) or order
    steps = ((rank, operation) for rank in cycle.ranks for operation in waits.of_rank[rank][::-1])
    p2p = {rank: waits.calls[rank, operation] for rank, operation in steps if operation in messages}
    in_collectives = tuple((r, waits.calls[r, waits.of_rank[r][0]]) for r in cycle.ranks if r not in p2p)
    mains = [main_thread(dump) for rank, dump in job.latest_stacks().items() if rank in p2p]
    scheduled = any("distributed/pipelining/" in frame.file for main in mains if main for frame in main.frames)
    calls = tuple(sorted(p2p.items()))
    if not in_collectives and len(calls) == 2:
        (_, call), (rank, other) = calls
        facing = call.peer == rank and call.key == other.key and {call.p2p, other.p2p} == {"send", "recv"}
        if facing and not same_tag(call, other):
            return PointToPoint(cycle, calls, (), confidence=SEEN, tags_differ=True)
    out_of_step, sure, stages = _out_of_step(job, cycle.ranks, calls, [call for _, call in in_collectives])
    return PointToPoint(cycle, calls, in_collectives, out_of_step, sure, scheduled, scheduled or stages)


def _out_of_step(
    job: JobState, ranks: Sequence[int], waits: Sequence[tuple[int, Call]], instead: Sequence[Call] = ()
) -> tuple[tuple[OutOfStep, ...], float, bool]:
    """Return who of the ranks of a cycle is out of step, how sure that is, and whether in its number of micro-batches.

    All that exchange messages with these are compared. A round ends with `instead`, the collectives of other ranks.
    """
    key, histories, todo = waits[0][1].key, dict[int, list[Call]](), [*ranks]
    ends = [Operation(call.key, call.seq) for call in instead]
    while todo:
        if (own := todo.pop()) not in histories and own in job.survey.ranks:
            histories[own] = _history(job, own, key.recorder, ends)
            todo += [call.peer for call in histories[own] if call.p2p and call.peer is not None]
    passes = {own: parts for own, calls in histories.items() if len(parts := rounds(calls)) > 2}
    # They wait in their last round, unless their hosts run ahead of their devices.
    undone = {own: [n for n, part in enumerate(parts) if not part[-1].done] for own, parts in passes.items()}
    last = {own: min(undone[own][: key.on_devices], default=len(parts) - 1) for own, parts in passes.items()}
    at, departs = {own: number for own, number in last.items() if number > 1}, dict[int, Departure]()
    for own, number in at.items():
        # Who is a round ahead of others has left them waiting in the previous one.
        earlier = number - 1 if number > max(2, min(at.values())) else number
        if departs_at := departure(passes[own], earlier) or departure(passes[own], number):
            departs[own] = departs_at
    kinds = {frozenset(step_of(call)[:2] for call in calls if call.p2p) for calls in histories.values()}
    stages = not instead and len(kinds) > 1
    if {*ranks} <= at.keys() and not any(own in ranks and case.kind == "new" for own, case in departs.items()):
        order = [own for own, case in departs.items() if case.kind == "order"]
        # Whoever changed alone. Where several did, the job may change its rounds, but not into one rank's own order.
        alone = order if len(order) == 1 else [*departs] if len(departs) == 1 else []
        for own in alone:
            change = departs[own].change
            answers = [("recv" if call.p2p == "send" else "send", rank) for rank, call in waits if call.peer == own]
            asks = [(call.p2p, call.peer) for rank, call in waits if rank == own]
            if all(change[half] >= 0 for half in answers) and all(change[half] <= 0 for half in asks):
                continue  # Nobody waits for what it changed.
            sure = ASSUMED if len(departs) > 1 else PROBABLE if order or len(histories) > 2 else POSSIBLE
            return (OutOfStep(own, departs[own]),), sure, stages and not order
    if few := tuple(out for out in _against_most(job, key, passes, at) if out.rank in ranks):
        return few, PROBABLE, stages
    # All make one call first that they never made before: no call that one of them skipped brings them there.
    again = any(step_of(call) == step_of(wait) for own, wait in waits for call in histories[own] if call.seq < wait.seq)
    alike = len({(call.p2p, call.stack) for _, call in waits}) == 1 and waits[0][1].stack
    return (), SEEN if alike and not again and not instead else ASSUMED, False


def _history(job: JobState, rank: int, recorder: str, ends: Sequence[Operation]) -> list[Call]:
    """Return the calls of a rank up to that in which it waits: what it does after it gave up is no order of its own."""
    calls, at = job.reading.history(rank, recorder), {end[:2] for end in ends}
    return calls[: next((n for n, call in enumerate(calls, 1) if not call.p2p and (call.key, call.seq) in at), None)]


def _against_most(
    job: JobState, key: GroupKey, passes: Mapping[int, Sequence[Sequence[Call]]], at: Mapping[int, int]
) -> tuple[OutOfStep, ...]:
    """Return few ranks that send or receive more or less often in their last round than most, as never before."""
    counts, rows = dict[int, Counter[Any]](), [dict[int, int](), dict[int, int]()]
    for own, number in at.items():
        for row, part in zip(rows, passes[own][number - 1 : number + 1], strict=True):
            counts[own] = Counter(step_of(call)[:2] for call in part if call.p2p)
            row[own] = max(counts[own].values(), default=0)
    vote = count_votes(key, 0, rows[1])
    if len({*at.values()}) > 1 or not vote.has_majority or len(vote.present) < 3 or len({*rows[0].values()}) > 1:
        return ()  # Whoever never did the same cannot be compared, nor can two ranks.
    most, heads = rows[1][vote.sides[0][0]], {own: job.survey.ranks[own].p2p[:1] for own in vote.minority}
    # Who made fewer has left these calls, and is not held up in them; who made more is still in them.
    within = {own for own in heads for call in heads[own] if counts[own][step_of(call)[:2]] == rows[1][own]}
    few = tuple(OutOfStep(own, None, rows[1][own], most) for own in vote.minority)
    return few if all((out.rank in within) == (out.now > most) for out in few) else ()


def _passed(job: JobState) -> PointToPoint | None:
    """Return messages whose peers passed them: both ends went on to one collective, and have nothing else in between.

    Hosts that do not wait for their devices enqueue that collective behind the message, so no cycle of waits shows.
    """
    waits, calls, cases = job.waits, dict[int, Call](), list[tuple[OutOfStep, Call, float]]()
    for operation, (rank, *_) in sorted(waits.waiting.items()):
        call, peer = waits.calls[rank, operation], operation.peer
        if peer < 0 or not job.waits_first_in(rank, operation):
            continue
        collectives = ((own, job.survey.groups[own.key].lines) for own in waits.of_rank.get(peer, []) if own.peer < 0)
        # What the rank issued too, so that it has nothing more to do before it.
        issued = (own for own, lines in collectives if rank in lines and lines[rank].issued >= own.seq)
        if (collective := next((waits.calls[peer, own] for own in issued), None)) is None:
            continue
        out_of_step, sure, _ = _out_of_step(job, (rank, peer), [(rank, call)], [collective])
        if out_of_step and out_of_step[0].rank == peer:
            calls[rank] = call
            cases.append((out_of_step[0], collective, sure))
    peers, fewer = {out.rank: collective for out, collective, _ in cases}, tuple(out for out, *_ in cases)
    cycle, least = Cycle(tuple(sorted({*calls, *peers})), ()), min((sure for *_, sure in cases), default=0.0)
    return PointToPoint(cycle, tuple(calls.items()), tuple(peers.items()), fewer, least) if cases else None


def _group_order(job: JobState, cycle: Cycle) -> GroupOrder:
    waits, of_cycle = job.waits, cycle.operations
    waiting = ((rank, at) for rank in cycle.ranks for at in waits.of_rank.get(rank, [])[::-1] if at in of_cycle)
    first = dict(waiting)  # The first operation of each rank.
    vote = count_votes(of_cycle[0].key, of_cycle[0].seq, first)
    sides = []
    for ranks in sorted(vote.sides):
        absent = tuple(rank for rank in waits.absent[first[ranks[0]]] if rank in cycle.ranks)
        sides.append(Side(ranks, first[ranks[0]], waits.calls[ranks[0], first[ranks[0]]], absent))
    passes = {rank: rounds(_history(job, rank, at.key.recorder, [at])) for rank, at in first.items() if vote.tie}
    changes = {rank: departure(parts, len(parts) - 1) for rank, parts in passes.items() if len(parts) > 2}
    own = tuple(rank for rank, change in changes.items() if change is not None and change.kind != "count")
    culprits = (len(own) < len(first) == len(changes) and own) or vote.minority or cycle.ranks
    apart = [pair for pair in permutations(sides, 2) if not {*culprits}.isdisjoint(pair[0].ranks)]
    proven = all(comes_later(job, side.ranks[0], side.call, other.ranks[0], other.call) for side, other in apart)
    return GroupOrder(cycle, tuple(sides), culprits, proven)


def comes_later(job: JobState, rank: int, call: Call, other_rank: int, other: Call) -> bool | None:
    """Return whether a rank in a call comes to the other rank's call later, as `loop_exit.comes_later` does."""
    ways = replace(call, stack=job.path(rank, call)), replace(other, stack=job.path(other_rank, other))
    return loop_exit.comes_later(*ways)


def _missed_call(job: JobState, cycle: Cycle) -> Divergence | None:
    """Return the call that ranks of the cycle skipped, by the program's text; None if it does not show one.

    Where loops have run before, `divergence.same_role` compares the calls of their rounds first.
    """
    # Two recorders may have seen the same calls.
    of_recorder = grouped((at.key.recorder, at) for at in cycle.operations).values()
    both_ways = [way for calls in of_recorder if len(calls) == 2 for way in permutations(calls)]
    for shown in (_by_program, _for_one_rank, _by_thread):
        for current, missed in both_ways:
            ranks, peers = (tuple(r for r in job.waits.waiting[at] if r in cycle.ranks) for at in (current, missed))
            if ranks and peers and (case := shown(job, (current, missed), ranks, peers)) is not None:
                return case
    return None


_Way = tuple[Operation, Operation]  # The operation that ranks wait in, and the one that they may have skipped.


def _by_program(job: JobState, way: _Way, ranks: tuple[int, ...], peers: tuple[int, ...]) -> Divergence | None:
    """Find a rank past a peer's call in program order, at a line on the common path: other ranks call from it too."""
    waits, (current, missed), expected = job.waits, way, job.waits.calls[peers[0], way[1]]
    absent = [rank for rank in ranks if rank in waits.absent[missed]]
    for pending in (waits.calls[rank, current] for rank in absent):
        same = [rank for rank in waits.waiting[current] if waits.calls[rank, current].site == pending.site]
        in_order = program_order(pending.stack, expected.stack) > 0 and not source_branches(pending, expected)
        if pending.site and len(same) > 1 and in_order:
            past, at = [rank for rank in same if rank in absent], (expected.key, expected.seq)
            # Of one rank alone, its line shows what it left out.
            calls = dict.fromkeys(peers, missed) | dict.fromkeys(past, current)
            vote = count_votes(*at, calls) if len(past) > 1 else settled(at, peers, past)
            return passed(vote, past, expected, pending)
    return None


def _for_one_rank(job: JobState, way: _Way, ranks: tuple[int, ...], peers: tuple[int, ...]) -> Divergence | None:
    """Find a call that the program's text gives to one rank, while its peers are in a call outside any branch."""
    pending, expected = job.waits.calls[ranks[0], way[0]], job.waits.calls[peers[0], way[1]]
    if set(ranks) & set(peers) or not for_one_rank(expected, pending):
        return None
    if conditions(pending, expected) or source_branches(pending, expected):
        return None
    return passed(settled((expected.key, expected.seq), ranks, peers), ranks, expected, pending)


def _by_thread(job: JobState, way: _Way, ranks: tuple[int, ...], peers: tuple[int, ...]) -> Divergence | None:
    """Find ranks that made the missed call's group's calls in the loop of another thread, which has ended.

    A thread that waits holds no other one up, so they did not go to another group first: they made fewer calls. A
    thread without a loop may be one of many, and the next one not started yet.
    """
    pending, expected = job.waits.calls[ranks[0], way[0]], job.waits.calls[peers[0], way[1]]
    table, stacks = job.survey.groups.get(way[1].key), job.latest_stacks()
    lasts = [table.lines[rank].last for rank in ranks if rank in table.lines] if table else []
    if len(lasts) < len(ranks) or not all(last and on_path(last) == on_path(expected) for last in lasts):
        return None
    threads = [thread for thread in stacks[peers[0]].threads if not thread.main] if peers[0] in stacks else []
    own = next(
        (thread.frames for thread in threads if expected.site and expected.site in map(short, thread.frames)), ()
    )
    lines = [at for at in own if is_users(at)]
    loops = {source_text.place(at.file, [at.line], at.line, expected.created_s) for at in lines}
    dumps = [stacks[rank].threads for rank in ranks if rank in stacks]
    alive = {(at.file, at.function) for threads in dumps for thread in threads for at in thread.frames}
    if (
        not loops & {"inside", "leaves"}
        or len(dumps) < len(ranks)
        or not alive.isdisjoint((at.file, at.function) for at in lines)
    ):
        return None
    vote = settled((expected.key, expected.seq), peers, ranks)
    return edited(vote, (expected, pending), ("drop", "round"), support("another thread"))
