"""Hangs of which only logs remain: reports of several ranks' NCCL watchdogs about one process group. Two ranks at one
position in calls that do not match are proof; positions that differ are not. Dumps show more.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import GUESSES, support
from diagnostics.analysis.divergence.explanation import Deviation, what_meets
from diagnostics.analysis.divergence.find import Divergence, between, edited
from diagnostics.analysis.divergence.identity import agree, differing_parts
from diagnostics.analysis.divergence.single_calls import at_places, made_alone, passed, unknown
from diagnostics.analysis.histories import watchdog_lines
from diagnostics.analysis.histories.watchdog_lines import GroupLog, Wait, members_of, site_of
from diagnostics.analysis.vote import Vote, count_votes, settled, supported
from diagnostics.contract.findings import WATCHDOGS
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.model import Evidence, Stacks
from diagnostics.evidence.stacks.dumps import taken_s

TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
"""Operations in which every rank needs data from every other one, so that none completes without all."""
_SIDE = 3  # Minimum number of ranks compared: of two, neither is the exception.
_MANY = 10  # Calls of unknown operations of which at least one takes part of every rank; those of a step often do not.


def find(evidence: Evidence, groups: list[GroupLog], world: int, *, any_ended: bool) -> Divergence | GroupLog | None:
    """Return what the reports of the ranks' watchdogs show, the surest first; None if they show nothing.

    A group alone is one in whose next call some ranks wait, while the others completed all of theirs and are late.

    `any_ended` says whether a rank is known to have ended by itself.
    """
    return next((case for case in _cases(evidence, groups, world, any_ended) if case is not None), None)


def _cases(
    evidence: Evidence, groups: list[GroupLog], world: int, any_ended: bool
) -> Iterator[Divergence | GroupLog | None]:
    idle, groups = [group for group in groups if not group.waits], [group for group in groups if group.waits]
    behind = watchdog_lines.enqueued_behind(groups)
    clear = [group for group in groups if not group.mixed]
    clear.sort(key=lambda group: all((group.name, rank) in behind for rank in group.waits))
    complete = [group for group in clear if _complete(evidence, group, groups)]
    busy = {rank for group in groups for rank in group.waits}
    yield from (_mismatch(evidence, group, clear) for group in complete)
    if not any_ended:
        yield from (_gap(evidence, group, busy) for group in clear if group.name != watchdog_lines.UNNAMED)
    if not evidence.is_cut:
        yield _missed(clear, behind, world)
    yield from (_drift(group, world) for group in (*complete, *idle))
    yield _sites(evidence, groups)


def _complete(evidence: Evidence, group: GroupLog, groups: list[GroupLog]) -> bool:
    """Return whether a group's lines are comparable: unnamed ones need one from every rank and no named group."""
    if group.name != watchdog_lines.UNNAMED:
        return True
    sizes = filter(None, (members_of(wait.fact) for wait in group.waits.values()))
    world = evidence.world_size or max(sizes, default=max(len(group.waits), _SIDE))
    ranked = [wait.rank for wait in group.waits.values() if wait.group_rank == wait.rank]
    return len(groups) == 1 and sorted(ranked) == list(range(world))


def _mismatch(evidence: Evidence, group: GroupLog, groups: Iterable[GroupLog]) -> Divergence | None:
    """Return the divergence of ranks at the group's first open position if the calls that they wait in do not match."""
    if (vote := _vote(group, groups)) is None:
        return None
    sides = [group.waits[side[0]] for side in vote.sides]
    calls = {wait.rank: wait.call(group) for wait in sides}
    for wait in sides:
        calls[wait.rank].created_s = taken_s(evidence, Stacks(None, wait.fact.file, ()))
    case, is_other = between(vote, lambda rank, _: [calls[rank]]), _is_other_call(group, vote, sides)
    if case is None:
        return None
    if case.explanation.terms[0].name in GUESSES or (is_other and case.explanation.deviation == "change"):
        met = what_meets(case.majority, case.minority, "single position", is_other=is_other)
        case = replace(case, explanation=met)
    limit = WATCHDOGS["unnamed" if case.tie or group.name == watchdog_lines.UNNAMED else "named"]
    lines = tuple(wait.fact for wait in (*sides[1:4], sides[0]))
    return replace(case, groups_known=group.name != watchdog_lines.UNNAMED, limit=limit, lines=lines)


def _is_other_call(group: GroupLog, vote: Vote, sides: Sequence[Wait]) -> bool:
    """Return whether the ranks made different calls, rather than the same call with different arguments.

    A metric or a barrier has one element, so it is never the same call as the gradient reduction that it meets. Two
    lines of the program are two calls, and ranks that make the same calls enqueue equally many after this one.
    """
    first, second, *_ = sides
    ahead = [{group.counters[rank].enqueued for rank in side if rank in group.counters} for side in vote.sides]
    return (
        "operation" in differing_parts(first.wire, second.wire)
        or min(first.numel or 0, second.numel or 0) == 1
        or (None not in (first.site, second.site) and first.site != second.site)
        or (all(ahead) and ahead[0].isdisjoint(set().union(*ahead[1:])))
    )


def _vote(group: GroupLog, groups: Iterable[GroupLog]) -> Vote | None:
    """Divide the ranks at the group's first open position by their calls; None if these may match.

    At a tie, the side in the call at which ranks of other groups with the same description wait at this position counts
    as the majority, or else the one that enqueued as many calls as they all did.
    """
    waits = [wait for _, wait in sorted(group.waits.items()) if wait.counted]
    if len(waits) < len(group.waits):
        return None  # Sends and receives use the same numbers.
    position = min(wait.seq for wait in waits)
    at_position = [wait for wait in waits if wait.seq == position]
    by_op = len({wait.name for wait in at_position}) > 1
    if not by_op and not all(wait.even for wait in at_position):
        return None
    call = attrgetter("name" if by_op else "wire")
    vote = count_votes(group.key, position, {wait.rank: call(wait) for wait in at_position})
    alike = [other for other in groups if other is not group and other.desc == group.desc != ""]
    calls = [call(wait) for other in alike for wait in other.waits.values() if wait.seq == position]
    votes = [calls.count(call(group.waits[side[0]])) for side in vote.sides]
    if not any(votes):
        counts = {counters.enqueued for other in alike for counters in other.counters.values()}
        enqueued = {rank: counters.enqueued for rank, counters in group.counters.items()}
        votes = [{enqueued.get(rank) for rank in side} == counts for side in vote.sides]
    vote = supported(vote, votes)
    # Two groups may share a number: only a majority or a name shows that the ranks belong together.
    certain = group.default or group.name == watchdog_lines.UNNAMED or group.has_guid or not vote.tie
    return vote if len(vote.sides) > 1 and certain else None


def _missed(groups: list[GroupLog], behind: set[tuple[str, int]], world: int) -> Divergence | None:
    """Return the ranks that left out a call: no rank completes it without them, and they are in a later one."""
    of_rank = grouped((rank, group) for group in groups for rank in group.waits)
    for group, absent in sorted(_absent(groups, world), key=lambda pair: -len(pair[0].waits)):
        waits, first = group.waits, group.waits[min(group.waits)]
        is_one_call = len({(wait.seq, wait.name) for wait in waits.values()}) == 1 and first.name in TOGETHER
        if not is_one_call or any((group.name, rank) in behind for rank in waits):
            continue
        for other in of_rank[absent[0]]:
            other_call = other.waits[absent[0]]
            alike = (rank in other.waits and other.waits[rank].seq == other_call.seq for rank in absent)
            met = [rank for rank in waits if rank in other.waits and other.waits[rank].seq == other_call.seq]
            is_first = not any((other.name, rank) in behind for rank in absent)
            if all(alike) and is_first and met and all((other.name, rank) in behind for rank in met):
                vote, lines = settled((group.key, first.seq), sorted(waits), absent), (other_call.fact, first.fact)
                calls = first.call(group), other_call.call(other)
                return passed(vote, absent, *calls, limit=WATCHDOGS["unnamed"], lines=lines)
    return None


def _absent(groups: list[GroupLog], world: int) -> Iterator[tuple[GroupLog, tuple[int, ...]]]:
    """Yield each group with its ranks that do not wait in it, if they can be told.

    The groups of one description are taken as those of a dimension of the mesh: equally large, each rank in one.
    """
    dimensions = grouped(((group.desc, "" if group.desc else group.name), group) for group in groups)
    for alike in dimensions.values():
        recorded = {rank for group in alike for rank in (*group.waits, *group.counters)}
        sizes = (members_of(wait.fact) or 0 for group in alike for wait in group.waits.values())
        size = max(sizes) or max(len({*group.waits, *group.counters}) for group in alike)
        absent = tuple(rank for rank in range(world) if rank not in recorded)
        for group in alike:
            whole = len(group.waits) + len(absent) == (world if group.default else size)
            if absent and whole and group.counters.keys() <= group.waits.keys():
                yield group, absent


def _drift(group: GroupLog, world: int) -> Divergence | None:
    """Return the ranks that are behind, if most ranks of the group completed that position and later ones without them.

    A call may complete on some ranks only: a link or a device failed. The one after it may not, since every rank takes
    part in it after that one. So it was not the same call: the ranks' sequences had parted before. Where counters alone
    tell it, the operations are unknown, so that many calls have to be ahead of those of each rank that is behind.
    """
    counters = group.counters
    completed = {rank: wait.seq - 1 for rank, wait in group.waits.items()}
    completed |= {rank: counter.completed for rank, counter in counters.items() if rank not in completed}
    reached = {rank: counter.enqueued for rank, counter in counters.items()}
    reached |= {rank: wait.seq for rank, wait in group.waits.items()}
    position = min(reached.values())
    behind = tuple(sorted(rank for rank, seq in reached.items() if seq == position))
    ahead = tuple(sorted(rank for rank, done in completed.items() if done > position))
    if len(ahead) <= len(behind) or len(ahead) + len(behind) < max(_SIDE, len(completed)):
        return None
    least, waiting = min(completed[rank] for rank in ahead), [rank for rank in behind if rank in group.waits]
    if not waiting or group.waits[waiting[0]].name not in TOGETHER:
        is_whole = len(completed) == world or (bool(group.desc) and not group.default)
        is_near = position > watchdog_lines.NEAR * least  # Else it may be the number of a send or a receive.
        is_one_time = group.name != watchdog_lines.UNNAMED and not group.is_old(behind, ahead)
        if least - position < _MANY or not (is_near and is_whole and is_one_time):
            return None
    first = group.waits[waiting[0]] if waiting else None
    enqueued = [counters[rank].enqueued for rank in behind if rank in counters]
    # The counters show whether the ranks behind made fewer calls rather than different ones.
    deviation: Deviation = "drop" if enqueued and max(enqueued) < least else "substitute"
    call = first.call(group) if first else unknown(group.key, position)
    calls, vote = (unknown(group.key, least), call), settled((group.key, position), ahead, behind)
    others = [rank for rank in (*behind, *ahead) if rank in counters and (first is None or rank != first.rank)][:3]
    lines = *((first.fact,) if first else ()), *(counters[rank].fact for rank in others)
    limit, term = WATCHDOGS["apart"], support("single position")
    return edited(vote, calls, (deviation, "within"), term, passed=least, limit=limit, lines=lines)


def _sites(evidence: Evidence, groups: list[GroupLog]) -> Divergence | None:
    """Return ranks whose printed stacks differ, if the lines name no group other than the default group."""
    if {fact.fields.get("desc") for fact in evidence.facts if fact.kind == "watchdog_status"} != {"default_pg"}:
        return None
    printed = [fact for fact in evidence.facts[::-1] if fact.kind == "collective_stack"]  # The first one of each rank.
    stacks = {fact.rank: fact for fact in printed if fact.rank is not None}
    ops = {str(fact.fields.get("op")) for fact in printed}
    functions = {rank: (fact.fields["file"], fact.fields["function"]) for rank, fact in stacks.items()}
    vote = count_votes(GroupKey("nccl", "0", "default_pg"), 0, functions)
    is_one_call = len(groups) <= 1 and len(ops) == 1 and ops <= TOGETHER
    if not is_one_call or len(stacks) < _SIDE or len(vote.sides) < 2 or not vote.has_majority:
        return None
    lines = tuple(stacks[side[0]] for side in (*vote.sides[1:4], vote.sides[0]))
    return at_places(vote, {rank: (min(ops), site_of(stack)) for rank, stack in stacks.items()}, lines=lines)


def _gap(evidence: Evidence, group: GroupLog, busy: set[int]) -> Divergence | GroupLog | None:
    """Return the ranks that wait in a call that the others never made, though all their calls completed.

    `busy` are the ranks that wait in any group.
    """
    waits = list(group.waits.values())
    seqs = {wait.seq for wait in waits}
    first = min(waits, key=lambda wait: wait.rank)
    if len(seqs) != 1 or not all(agree(first.wire, wait.wire) for wait in waits) or not first.counted:
        return None
    seq = seqs.pop()
    # The others could not have completed it below that position either: such a counter counts something else.
    behind = {rank: counters for rank, counters in group.counters.items() if rank not in group.waits}
    if not behind or busy & set(behind):
        return None
    if any((counters.enqueued, counters.completed) != (seq - 1, seq - 1) for counters in behind.values()):
        return None
    waiting, late = sorted(group.waits), sorted(behind)
    members = range(evidence.world_size or 0) if group.default else ()
    last, limit, lines = unknown(group.key, seq - 1), WATCHDOGS["apart"], (behind[late[0]].fact, first.fact)
    return made_alone(waiting, late, last, first.call(group), members, limit=limit, lines=lines) or group
