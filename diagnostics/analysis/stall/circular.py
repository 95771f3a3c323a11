"""Cycles of the wait-for graph by kind: groups used in different orders, point-to-point calls, a missed call."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations, groupby, pairwise, permutations
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
from diagnostics.analysis.vote import count_votes, settled
from diagnostics.analysis.wait_graph.graph import Cycle, Operation, same_tag
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call
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


class LeftOut(Struct, frozen=True):
    """Numbers of messages that a rank exchanged with one peer in its last two rounds, the last one with fewer.

    Where ranks wait for each other in messages alone: how often it and most ranks made the same calls.
    """

    rank: int
    now: int
    before: int
    of_stage: bool = False
    """Whether the first or last of them only sends or only receives there, as stages of a pipeline do."""


class PointToPoint(Struct, frozen=True):
    """Ranks that wait in a send or receive whose counterpart is never posted."""

    cycle: Cycle
    calls: tuple[tuple[int, Call], ...]
    """Rank and call of each rank that waits in a send or receive."""
    in_collectives: tuple[tuple[int, Call], ...]
    """Rank and call of each rank in the cycle that waits in a collective instead."""
    peers: dict[int, Call]
    """The peer of the first call -> the call that it waits in; empty if it waits in none."""
    left_out: tuple["LeftOut", ...] = ()
    """Ranks that posted fewer counterparts in this round than in the previous one, or made calls more or less often."""
    scheduled: bool = False
    """Whether a stack shows torch's pipeline schedule, whose messages match if all stages follow the same one."""

    @property
    def of_stages(self) -> bool:
        """Whether the ranks are stages of a pipeline, torch's or one of the program's own."""
        return self.scheduled or any(case.of_stage for case in self.left_out)

    @property
    def tags_differ(self) -> bool:
        """Whether two ranks wait for each other in the two halves of a message that differ only in their tags."""
        if self.in_collectives or len(self.calls) != 2:
            return False
        (rank, call), (peer, peer_call) = self.calls
        facing = (call.peer, peer_call.peer) == (peer, rank) and {call.p2p, peer_call.p2p} == {"send", "recv"}
        return facing and call.key == peer_call.key and not same_tag(call, peer_call)


CircularWait = GroupOrder | PointToPoint
_OTHER_HALF = {"send": "recv", "recv": "send"}


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
        if len(vote.sides) > 1:
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
    peer = next(iter(p2p.values())).peer
    peers = {peer: waits.calls[peer, waits.of_rank[peer][0]]} if peer is not None and waits.of_rank.get(peer) else {}
    collectives = dict(in_collectives)
    one_sided = ((rank, call, call.peer) for rank, call in p2p.items())
    rounds = [
        _left_out(job, rank, call, peer, collectives[peer]) for rank, call, peer in one_sided if peer in collectives
    ]
    left_out = [*filter(None, rounds)]
    mains = [main_thread(dump) for rank, dump in job.latest_stacks().items() if rank in p2p]
    scheduled = any("distributed/pipelining/" in frame.file for main in mains if main for frame in main.frames)
    calls = tuple(sorted(p2p.items()))
    if not in_collectives and not scheduled:
        left_out = _out_of_step(job, calls)
    return PointToPoint(cycle, calls, in_collectives, peers, tuple(left_out), scheduled)


def _out_of_step(job: JobState, waits: Sequence[tuple[int, Call]]) -> list[LeftOut]:
    """Return the few ranks that made the messages of a rank and its peer more or less often than most ranks.

    These are the call in which the rank waits, and the last one with which its peer answered it: all ranks come to one
    of them as often, as stages of a pipeline and members of a ring do. Two ranks alone show no majority.
    """
    key, counted, last = waits[0][1].key, dict[int, Counter[Any]](), dict[tuple[int, int | None, str], Any]()
    for own in sorted(job.survey.ranks):
        messages = job.reading.calls(own, key, messages=True)
        if messages and messages[0].seq > 1:
            return []  # What a recorder has lost cannot be counted.
        counted[own] = Counter(map(on_path, messages))
        last |= {(own, call.peer, call.p2p): on_path(call) for call in messages}
    shared = Counter(path for counts in counted.values() for path in counts)
    phases = dict[frozenset[Any], set[int]]()
    for rank, call in waits:
        answer = last.get((call.peer, rank, _OTHER_HALF[call.p2p])) if call.peer is not None else None
        if call.peer is None or min(shared[on_path(call)], shared[answer]) < 2:
            return []  # A call that no other rank makes is one of its own.
        phases.setdefault(frozenset({on_path(call), answer}), set()).update((rank, call.peer))
    # Whoever waits in a later phase has left the earlier one. A rank's first calls show their order.
    order = {path: number for number, path in enumerate(counted[waits[0][0]])}
    paths = min(phases, key=lambda paths: min(order.get(path, len(order)) for path in paths))
    often = {own: [counts[path] for path in paths if path in counts] for own, counts in counted.items()}
    vote = count_votes(key, 0, {own: max(counts) for own, counts in often.items() if counts})
    if not vote.has_majority or not len(vote.present) > 2 or not phases[paths] & {*vote.minority}:
        return []
    # In their last round, too: whoever is a round behind is held up by others.
    rows = {own: _last_row(job.reading.calls(own, key, messages=True), paths) for own in vote.present}
    by_row, heads = count_votes(key, 0, rows), {own: job.survey.ranks[own].p2p[:1] for own in vote.minority}
    # Who made fewer has left that phase; who made more is still in it.
    within = {own for own, pending in heads.items() if paths & {on_path(call) for call in pending}}
    of_stage, most = any(len(often[own]) < len(paths) for own in vote.present), rows[by_row.sides[0][0]]
    if by_row.minority != vote.minority or any((own in within) == (rows[own] < most) for own in vote.minority):
        return []
    return [LeftOut(own, rows[own], most, of_stage) for own in vote.minority]


def _last_row(calls: Sequence[Call], paths: Collection[Any]) -> int:
    """Return how often a rank made one of these calls in the last row of messages that are all at these paths."""
    rows = [Counter(map(on_path, row)) for within, row in groupby(calls, lambda call: on_path(call) in paths) if within]
    return max(rows[-1].values(), default=0) if rows else 0


def _left_out(job: JobState, rank: int, waits: Call, peer: int, collective: Call) -> LeftOut | None:
    """Return the peer's messages in this round and the previous one if it posted fewer while `rank` posted no more.

    A round ends with `collective`, in which the peer waits while `rank` waits for the peer in `waits`.
    """
    key, half, end = waits.key, waits.p2p, on_path(collective)
    rounds: list[list[int]] = []
    for own, to, direction in ((peer, rank, _OTHER_HALF[half]), (rank, peer, half)):
        calls = job.reading.calls(own, collective.key) + job.reading.calls(own, key, messages=True)
        counts = [0]
        for call in sorted(calls, key=lambda call: call.created_s or 0.0):
            counts[-1] += call.p2p == direction and call.peer == to
            if on_path(call) == end:
                counts.append(0)
        rounds.append(counts)
    line = job.survey.groups[collective.key].lines.get(rank)
    went_on = line is not None and line.issued >= collective.seq
    posted, waited = rounds[0][:-1], rounds[1][:-1] if went_on else rounds[1]
    if min(len(posted), len(waited)) < 2 or posted[-1] >= posted[-2] or waited[-1] > waited[-2]:
        return None
    return LeftOut(peer, posted[-1], posted[-2])


def _passed(job: JobState) -> PointToPoint | None:
    """Return messages whose peers passed them: both ends went on to one collective, and have nothing else in between.

    Hosts that do not wait for their devices enqueue that collective behind the message, so no cycle of waits shows.
    """
    waits, cases = job.waits, dict[int, tuple[Operation, Call, Call, LeftOut]]()
    for operation, (rank, *_) in sorted(waits.waiting.items()):
        call, peer = waits.calls[rank, operation], operation.peer
        if peer < 0 or not job.waits_first_in(rank, operation):
            continue
        collectives = ((own, job.survey.groups[own.key].lines) for own in waits.of_rank.get(peer, []) if own.peer < 0)
        # What the rank issued too, so that it has nothing more to do before it.
        issued = (own for own, lines in collectives if rank in lines and lines[rank].issued >= own.seq)
        if (collective := next((waits.calls[peer, own] for own in issued), None)) is None:
            continue
        if (fewer := _left_out(job, rank, call, peer, collective)) is not None:
            cases[rank] = operation, call, collective, fewer
    if not cases:
        return None
    peers = {fewer.rank: collective for _, _, collective, fewer in cases.values()}
    cycle = Cycle(tuple(sorted({*cases, *peers})), tuple(operation for operation, *_ in cases.values()))
    calls = tuple((rank, call) for rank, (_, call, _, _) in cases.items())
    left_out = tuple(fewer for *_, fewer in cases.values())
    first = left_out[0].rank
    return PointToPoint(cycle, calls, tuple(peers.items()), {first: peers[first]}, left_out)


def _group_order(job: JobState, cycle: Cycle) -> GroupOrder:
    waits, of_cycle = job.waits, cycle.operations
    waiting = ((rank, at) for rank in cycle.ranks for at in waits.of_rank.get(rank, [])[::-1] if at in of_cycle)
    first = dict(waiting)  # The first operation of each rank.
    vote = count_votes(of_cycle[0].key, of_cycle[0].seq, first)
    sides = []
    for ranks in sorted(vote.sides):
        absent = tuple(rank for rank in waits.absent[first[ranks[0]]] if rank in cycle.ranks)
        sides.append(Side(ranks, first[ranks[0]], waits.calls[ranks[0], first[ranks[0]]], absent))
    changes = {rank: _changes_order(job, rank, at) for rank, at in first.items() if vote.tie}
    own = () if None in changes.values() else tuple(rank for rank, differs in changes.items() if differs)
    culprits = (len(own) < len(first) and own) or vote.minority or cycle.ranks
    apart = [pair for pair in permutations(sides, 2) if not {*culprits}.isdisjoint(pair[0].ranks)]
    proven = all(comes_later(job, one.ranks[0], one.call, other.ranks[0], other.call) for one, other in apart)
    return GroupOrder(cycle, tuple(sides), culprits, proven)


def comes_later(job: JobState, rank: int, call: Call, other_rank: int, other: Call) -> bool | None:
    """Return whether a rank in a call comes to the other rank's call later, as `loop_exit.comes_later` does."""
    ways = replace(call, stack=job.path(rank, call)), replace(other, stack=job.path(other_rank, other))
    return loop_exit.comes_later(*ways)


def _changes_order(job: JobState, rank: int, at: Operation) -> bool | None:
    """Return whether a rank came to the group in which it waits from another one than before; None in a first round."""
    calls = [call for call in job.reading.history(rank, at.key.recorder) if not call.p2p]
    # What it did after it gave up on this call is no order of its own.
    keys = [
        call.key for call in calls[: 1 + next((n for n, own in enumerate(calls) if (own.key, own.seq) == at[:2]), -1)]
    ]
    *before, last = pairwise(keys) if len(keys) > 1 else [(at.key, at.key)]
    return last not in before if any(second == last[1] for _, second in before) else None


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
