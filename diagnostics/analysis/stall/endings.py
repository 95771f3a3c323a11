"""Which ranks ended first and by themselves, what they called last, and which are missing without a record. Where ranks
exited normally while others wait: did these deviate, or those that continued?
"""

from collections.abc import Collection, Hashable, Iterable
from math import inf
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.find import SAME_MOMENT_S, Divergence, edited
from diagnostics.analysis.divergence.identity import on_path
from diagnostics.analysis.divergence.whole_programs import WithinRound, ended_in_round, made_more
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.job_state import STALL_S, JobState
from diagnostics.analysis.stall.stack_evidence import made_by_one_rank
from diagnostics.analysis.vote import OF_JOB, count_votes, is_majority, is_minority, settled
from diagnostics.contract.formatting import UNNAMED
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call, GroupKey, own_line
from diagnostics.evidence.endings import BY_ITSELF, Ending, Kind, parameters

_LONGEST = 64  # Calls that one side may have made in excess of the other.


class LastSeen(Struct, frozen=True):
    """The most recent call of a rank, and a peer that waits for the rank."""

    rank: int
    call: Call
    inside: bool
    """Whether the rank never returned from the call."""
    peer: int | None = None
    peer_call: Call | None = None


class EarlierStep(Struct, frozen=True):
    """Ranks that exited in an earlier step than the current step of a peer."""

    step: int
    peer: int
    peer_step: int
    peer_call: Call | None
    peers: tuple[int, ...]
    last: LastSeen | None


Departure = Divergence | EarlierStep | WithinRound


class FirstEndings(Struct, frozen=True):
    """Ranks that ended first and in the same way."""

    kind: Kind
    endings: tuple[Ending, ...]
    ranks: tuple[int, ...]
    """The ranks that ended; empty if no file identifies them."""
    culprits: tuple[int, ...]
    """The same ranks, or those whose model differs; empty if it is a `tie`."""
    victims: tuple[int, ...]
    last: LastSeen | None
    """Last call of the first rank, if its ending has no line."""
    gave_up: Ending | None
    """Ending of a victim whose traceback shows where it waited; only for ranks that exited normally."""
    model: Literal["", "all_but_0", "counted", "either"] = ""
    """How it is known whose model differs: all but rank 0 raised, with whose parameters DDP compares the others' (of 2
    ranks: either); or each rank raised how many it has."""
    awaited: bool = True
    """Whether a record shows that others waited for these ranks or lost them; else the launcher stopped the others."""
    one_more: bool = False
    """Whether the source lets one rank alone make the call in which the only victim waited."""
    later: bool = False
    """Whether a rank ended in another way before, so that this may be an effect."""

    @property
    def first(self) -> Ending:
        """The first ending, or that of the lowest rank if their order is unknown."""
        return self.endings[0]

    @property
    def alone(self) -> bool:
        """Whether one rank alone waits for others that exited normally: these left early, or it made one call more."""
        return self.gave_up is not None and len(self.victims) == 1 and not self.culprits

    @property
    def tie(self) -> bool:
        """Whether it is open whether these ranks left early or the others called one more."""
        return bool(self.ranks) and not self.culprits


class Missing(Struct, frozen=True):
    """Ranks that all others wait for and whose ending is not recorded."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    no_dump: bool
    """Whether they left no readable dump; otherwise their connections broke."""
    abort: Ending | None = None
    """Ending of one of them, if an abort is recorded."""
    last: LastSeen | None = None


def first_endings(job: JobState) -> tuple[FirstEndings, ...]:
    """Return the ranks that ended first, one per kind of ending; an error about a lost peer is never first."""
    by_kind = grouped((job.endings[rank].kind, job.endings[rank]) for rank in sorted(job.endings))
    if job.finished():
        return ()
    behind, exits = {*job.behind()}, by_kind["exited"]
    if all(end.in_order for end in exits):
        # One that ended in order although its last call failed got further than those that left their peers alone.
        by_kind["exited"] = [end for end in exits if end.rank in behind] or exits
    else:  # Whoever ended in order, and had made all calls of the others, left nobody waiting.
        awaited = behind | job.waits.waited_for()
        # Whoever waited for one of them in a call lost it, and exited for that.
        first = {end.rank for end in exits} & job.waits.waited_for() - job.waits.of_rank.keys()
        causes = [end for end in exits if end.rank not in job.waits.reaching(first)]
        by_kind["exited"] = [end for end in causes if not end.in_order or end.rank in awaited]
    cases = [_first(job, kind, _in_order(by_kind[kind])) for kind in BY_ITSELF if _matters(job, by_kind[kind])]
    firsts = _in_order([case.first for case in cases])
    return tuple(replace(case, later=case.first is not firsts[0]) for case in cases)


def _in_order(endings: list[Ending]) -> list[Ending]:
    """Return endings by time if logs date all of them, else as the launcher saw them, then by their lines in a log."""
    dated = all(end.before_s is not None for end in endings)
    times = [inf if at is None else at for at in (end.before_s if dated else end.time_s for end in endings)]
    lines = [end.line if end.file == endings[0].file else 0 for end in endings]
    return [row[-1] for row in sorted(zip(times, lines, range(len(endings)), endings, strict=True))]


def left_together(job: JobState, ranks: Collection[int]) -> bool:
    """Return whether ranks of which only an exit code is known left nobody waiting: all or most ended so, all ranks of
    the job had made the same calls, or several waited alike. The launcher then stopped those that were slower to end.
    """
    ends, world = [job.endings[rank] for rank in ranks], job.world()
    absent = {rank: {*job.waits.absent[at]} for rank in ranks for at in job.waits.blockers(rank)}
    codes = {end.only_exit_code and end.exit_code for end in ends}
    if (
        len(absent) == len(ranks) > 1
        and len(codes) == 1
        and False not in codes
        and not set().union(*absent.values()) & {*ranks}
    ):
        return True  # As a watchdog of the program's own does, which each of them runs.
    others = {end.kind for rank, end in job.endings.items() if rank not in ranks}
    if others - {"stopped"} or not all(end.only_exit_code for end in ends):
        return False
    records = [job.survey.ranks[rank] for rank in range(world) if rank in job.survey.ranks]
    if world > 1 and len({end.exit_code for end in ends}) == 1 and (len(ends) == world or not records):
        return is_majority(len(ends), world)
    # One that ended in a call which no rank completed leaves the others in it.
    within = {rank for at, waiting in job.waits.waiting.items() if not job.waits.complete[at] for rank in waiting}
    apart = {*ranks} & (job.waits.waited_for() | {*job.behind()} | job.waits.incomparable() | within)
    whole = len(records) == world and all(SNAPSHOTS in own.recorders or own.stuck_dump for own in records)
    return whole and job.any_calls() and not apart


def ended_in_order(cases: Iterable[FirstEndings]) -> FirstEndings | None:
    """Return the ranks that exited with code 0 while others waited; None if there are none."""
    return next((case for case in cases if all(end.in_order for end in case.endings)), None)


def _matters(job: JobState, endings: list[Ending]) -> bool:
    """Return whether it ends the job: a normal exit does so only if others wait for these ranks or lost them, and one
    with another code unless all ranks had made the same calls.
    """
    ended = {end.rank for end in endings}
    if not all(end.in_order for end in endings) or not ended:
        return bool(ended) and not left_together(job, ended)
    lost = {rank for rank, end in job.endings.items() if end.victim or end.kind == "aborted"}
    others = set(range(job.world())) - ended
    waits = any(seen.blocked_s >= STALL_S for rank, seen in observations(job.evidence).items() if rank in others)
    return bool(others) and bool(ended & job.waits.waited_for() or lost - ended or waits)


def _first(job: JobState, kind: Kind, endings: list[Ending]) -> FirstEndings:
    ranks = tuple(sorted(end.rank for end in endings if end.rank != UNNAMED))
    status = job.evidence.run.status if job.evidence.run is not None else None
    reported = status.failure.victims if status is not None and status.failure is not None else []
    lost = {rank for rank, end in job.endings.items() if not end.by_itself}
    lost |= {rank for rank in reported if isinstance(rank, int)} if isinstance(reported, list) else set()
    victims = tuple(sorted((job.waits.reaching(ranks) | lost) - set(ranks))) if ranks or endings[0].unlisted else ()
    ends = (job.endings[rank] for rank in victims if endings[0].in_order and rank in job.endings)
    gave_up = next((end for end in ends if own_line(end.frames)), None)
    last = last_seen(job, ranks[0]) if ranks and not any(own_line(end.frames) for end in endings) else None
    world = job.world()
    # Of a half that exited normally, nothing shows the calls before.
    is_tie = endings[0].in_order and not is_minority(len(ranks), world) and gave_up is not None and last is None
    culprits = () if is_tie else ranks
    model: Literal["", "all_but_0", "counted", "either"] = ""
    counted = count_votes(OF_JOB, 0, parameters(endings), range(world))
    if counted.has_majority and counted.minority:
        model, culprits, victims = "counted", counted.minority, counted.sides[0]
    elif all(end.detail == "model_differs" for end in endings) and len(ranks) >= max(1, world - 1) and 0 not in ranks:
        model = "all_but_0" if world > 2 else "either"
        culprits, victims = ((0,), tuple(range(1, world))) if world > 2 else ((0, 1), ())
    stopped = {rank for rank, end in job.endings.items() if end.kind == "stopped"}
    awaited = not victims or bool(job.waits.reaching(ranks) or lost - stopped) or job.stands_still()
    one_more = gave_up is not None and len(victims) == 1 and made_by_one_rank(job, gave_up)
    return FirstEndings(kind, tuple(endings), ranks, culprits, victims, last, gave_up, model, awaited, one_more)


def missing_ranks(job: JobState) -> Missing | None:
    """Return ranks that all others wait for, and that vanished or left nothing; None if one ended by itself."""
    if job.finished() or any(end.by_itself for end in job.endings.values()):
        return None
    incomparable = job.waits.incomparable()
    roots = [rank for rank in job.waits.roots() if rank not in incomparable]
    if job.peer_vanished():
        lost = tuple(rank for rank in roots if rank not in job.endings)
        if lost and job.survey.ranks.keys() >= {*lost}:
            waiting = tuple(sorted(job.waits.reaching(lost) - set(lost)))
            return Missing(lost, waiting, no_dump=False, last=last_seen(job, lost[0]))
    if not job.stands_still() or any(not incomparable & set(cycle.ranks) for cycle in job.waits.cycles()):
        return None  # Ranks that are present wait for each other, whatever happened to the others.
    silent = tuple(rank for rank in roots if rank not in job.survey.ranks)
    if not silent or len(silent) != len(roots) or is_majority(len(silent), job.world()):
        return None
    abort = next((job.endings[rank] for rank in silent if rank in job.endings and job.endings[rank].exited_early), None)
    return Missing(silent, tuple(sorted(job.waits.reaching(silent))), no_dump=True, abort=abort)


def last_seen(job: JobState, rank: int) -> LastSeen | None:
    """Return the latest call of a rank, or None; of one call in two recorders, the one with its line."""
    record = job.survey.ranks.get(rank)
    if record is None or record.last is None:
        return None
    calls = [record.last, *(line.last for line in record.lines.values() if line.last is not None)]
    youngest_s = max(call.created_s or 0.0 for call in calls)
    same = [call for call in calls if youngest_s - (call.created_s or 0.0) <= SAME_MOMENT_S]
    call = max(same, key=lambda call: (call.site is not None, call.created_s or 0.0))
    end = job.endings.get(rank)
    # A rank that exited normally returned from its last call, though gloo marks it complete only later.
    inside = not call.done and call.completion_known and not (end is not None and end.in_order)
    for operation, absent in sorted(job.waits.absent.items()):
        waiting = job.waits.waiting[operation]
        if rank in absent and waiting:
            return LastSeen(rank, call, inside, waiting[0], job.waits.calls[waiting[0], operation])
    return LastSeen(rank, call, inside)


def departure(job: JobState, ended: tuple[int, ...]) -> Departure | None:
    """Compare ranks that all ended with exit code 0 with those that wait for them; None if no record shows more."""
    keys = sorted(job.survey.groups, key=lambda key: (key.recorder != SNAPSHOTS, key))
    more = next((case for key in keys if (case := _more_calls(job, ended, key)) is not None), None)
    if more is not None:
        return more
    own = max((job.step_of(rank) or 0 for rank in ended), default=0)
    peers = {rank: job.step_of(rank) or 0 for rank in job.survey.ranks if rank not in ended}
    most = max(peers.values(), default=0)
    if 0 < own < most:
        ahead = min(rank for rank, step in peers.items() if step == most)
        call = next(iter(job.survey.ranks[ahead].pending()), job.survey.ranks[ahead].last)
        return EarlierStep(own, ahead, most, call, tuple(sorted(peers)), last_seen(job, ended[0]))
    stops = [_ended_in_round(job, rank) for rank in ended if rank in job.survey.ranks]
    cases = [stop for stop in stops if stop is not None]
    if between := [stop for stop in cases if isinstance(stop, Divergence)]:
        first, ranks = between[0], tuple(sorted(stop.minority_rank for stop in between))
        others = [rank for rank in first.vote.sides[0] if rank not in ranks]
        return replace(first, vote=settled((first.key, first.vote.position), others, ranks), culprits=ranks)
    return next(iter(cases), None)


def _more_calls(job: JobState, exited: tuple[int, ...], key: GroupKey) -> Divergence | None:
    """Return the divergence of ranks that wait in calls that the exited ranks never made."""
    lines = job.survey.groups[key].lines
    ended = tuple(rank for rank in exited if rank in lines)
    waiting = tuple(sorted(rank for rank in lines if rank not in exited))
    lengths = [{lines[rank].issued for rank in side} for side in (ended, waiting)]
    if not all(len(issued) == 1 for issued in lengths) or set(exited) & set(job.survey.members(key)) - set(ended):
        return None
    by = lengths[1].pop() - lengths[0].pop()
    if not 0 < by <= _LONGEST:
        return None
    shorter, longer = job.reading.calls(ended[0], key), job.reading.calls(waiting[0], key)
    return made_more(ended, waiting, shorter, longer, by)


def _ended_in_round(job: JobState, rank: int) -> Divergence | WithinRound | None:
    """Return where a rank stopped, relative to a peer that made the call after its last one."""
    for key, line in sorted(job.survey.ranks[rank].lines.items()):
        peers = job.survey.groups[key].lines
        # Gloo marks failed and completed calls alike, so the call need not be pending.
        peer = next((other for other in sorted(peers) if other != rank and peers[other].issued > line.issued), None)
        peer_calls = job.reading.calls(peer, key) if peer is not None else []
        pending = next((call for call in peer_calls if call.seq == line.issued + 1), None)
        if peer is None or pending is None:
            continue
        calls = [call for call in job.reading.calls(rank, key) if call.seq < pending.seq]
        ahead = tuple(other for other in sorted(peers) if peers[other].issued > line.issued)
        theirs, own = (job.reading.history(of, key.recorder) for of in (peer, rank))
        upto = next((n for n, call in enumerate(theirs, 1) if (call.key, call.seq) == (key, pending.seq)), 0)
        if calls and _left_one_out([*map(on_path, theirs[:upto])], [*map(on_path, own)]):
            vote, left_out = settled((key, pending.seq), ahead, (rank,)), support("past that line")
            return edited(vote, (pending, calls[-1]), ("drop", "within"), left_out, ended="minority")
        return ended_in_round(rank, ahead, calls, pending)
    return None


def _left_one_out(theirs: list[Hashable], own: list[Hashable]) -> bool:
    """Return whether a rank made its peer's last call once less, although it made each round of the loop around it.

    It made another call of each round as often as the peer before the last call of that kind; else once less as well.
    """
    *before, last = theirs or [None]
    if last not in own or before.count(last) != own.count(last):
        return False
    until, since = own[: -own[::-1].index(last) or None], before[len(before) - before[::-1].index(last) :]
    return any(until.count(step) == own.count(last) == before.count(step) for step in since)
