"""A rank that is late, not stuck: everything completed, and one rank kept coming long after the others.

Works on arrival times alone. A clock that is off shows at every position alike and is taken out.
"""

from dataclasses import dataclass

from diagnostics.contract.findings import Cost, Finding, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.ring.samples import stands_out

LATE_S = 0.2
"""A rank that comes this long after the one before it is late."""
TIMES = 3
"""It takes as many late arrivals, or one of `ONCE_S`, to be a straggler."""
ONCE_S = 10.0
SHARE_OF_TIME = 0.25
"""Of the recorded time, lost by waiting for it."""
SHARE_OF_LATE = 0.8
"""Of the time lost to anybody, lost to this rank."""


@dataclass(frozen=True, slots=True)
class Late:
    """One rank's lateness in one group."""

    key: GroupKey
    rank: int
    times: int
    lost_s: float
    worst_s: float
    position: int
    window_s: float


def find(context: Context) -> list[Finding]:
    """A confirmed straggler; nothing while ranks wait for one that is not there."""
    if context.waits.waited_for() or context.settled:
        return []
    late = max(
        filter(None, (_late(context, key) for key in sorted(context.survey.groups))),
        key=lambda one: one.lost_s,
        default=None,
    )
    return [_finding(context, late)] if late is not None else []


def _late(context: Context, key: GroupKey) -> Late | None:
    table = context.survey.groups[key]
    arrivals = table.arrivals.positions()
    members = len(context.survey.members(key))
    full = [one for one in arrivals if one[3] >= members > 1]
    if len(full) < 2:
        return None
    ranks = {one[1] for one in full}
    offset_s = min(one[2] for one in full) if len(ranks) == 1 else 0.0
    lost: dict[int, list[tuple[float, int]]] = {}
    before_s = full[0][4]
    for position, rank, late_s, _, at_s in full[1:]:
        again = at_s - before_s < late_s / 2  # The delay of the position before, seen once more.
        before_s = at_s
        if late_s - offset_s >= LATE_S and not again:
            lost.setdefault(rank, []).append((late_s - offset_s, position))
    if not lost:
        return None
    rank = max(lost, key=lambda one: sum(seconds for seconds, _ in lost[one]))
    total_s = sum(seconds for each in lost.values() for seconds, _ in each)
    mine_s = sum(seconds for seconds, _ in lost[rank])
    worst_s, position = max(lost[rank])
    window_s = table.arrivals.span_s()
    often = len(lost[rank]) >= TIMES and mine_s >= SHARE_OF_TIME * window_s
    if (often or worst_s >= ONCE_S) and mine_s >= SHARE_OF_LATE * total_s:
        return Late(key, rank, len(lost[rank]), mine_s, worst_s, position, window_s)
    return None


def _finding(context: Context, late: Late) -> Finding:
    survey = context.survey
    calls = context.reading.calls(late.rank, late.key)
    call = next((one for one in calls if one.seq == late.position), None)
    others = tuple(rank for rank in survey.members(late.key) if rank != late.rank)
    when = f"{late.times} times, up to {late.worst_s:.1f} s" if late.times > 1 else f"{late.worst_s:.1f} s"
    return Finding(
        cause="hang.straggler",
        status="confirmed",
        summary=(
            f"Rank {late.rank} is late, not stuck: it reached "
            f"{say.call(call) if call else f'position {late.position}'} and others "
            f"{when} after {say.ranks(others)}; everything completed. {late.lost_s:.1f} s of "
            f"{late.window_s:.1f} s were lost by waiting for it."
        ),
        confidence=0.85,
        ranks=(late.rank,),
        victims=others,
        group=say.group(survey, late.key),
        position=late.position,
        where=(*_stands(context, late), *say.where(late.rank, call, "arrives late here")),
        cost=Cost(round(late.lost_s, 2), "s blocked"),
        evidence=say.flight(survey, {late.rank: f"late {when}"}),
        remedies=say.remedies(
            context.evidence,
            f"look at what rank {late.rank} does before this call that the others do not: its data, its disk, its node",
            "every step takes as long as the slowest rank",
        ),
        measured=f"{late.lost_s:.1f} s of {late.window_s:.1f} s",
    )


def _stands(context: Context, late: Late) -> tuple[Where, ...]:
    """The line on which it is while the others wait, as far as its ring saw it."""
    run = context.evidence.run
    found = stands_out(context.evidence.rings, late.rank, run.attempt if run else None)
    if found is None:
        return ()
    frame, times, looks = found
    does = f"was here in {times} of {looks} looks between its collectives, its peers were not"
    return (Where(late.rank, frame.file, frame.line, frame.function, does),)
