"""Ranks that wait while others ended in order: did they make a call more than those that ended?

By content and line, from the calls of both sides: a call from a line that no rank that ended ever came to, behind
which all later calls fit again, is one too many whoever is more. At the very end of the calls only a vote can tell.
Knows nothing of ranks that ended early, which is `early_end`'s matter.
"""

from dataclasses import dataclass, replace

from diagnostics.analysis.divergence import on_path, predict
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import counted
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call, GroupKey

_LONGEST = 64
"""Calls that one side may have made more than the other."""
_CONDITIONAL = "hang.conditional_collective"
_UNEVEN = "hang.uneven_iterations"


@dataclass(frozen=True, slots=True)
class _More:
    """What the ranks that wait made more."""

    ranks: tuple[int, ...]
    ended: tuple[int, ...]
    extra: tuple[Call, ...]
    there: Call
    """The call of a rank that ended at the same position, or its last one."""
    pending: Call
    again: int
    """Calls behind it that fit."""
    new: bool
    """Whether it comes from a line that no rank that ended came to."""
    chances: int = 0
    """Earlier calls from that line, which fitted other calls of those that ended."""


def find(context: Context, exited: Finding) -> list[Finding]:
    """One finding at most, that blames ranks that wait for those that `exited` tells the end of."""
    keys = sorted(context.survey.groups, key=lambda key: (key.recorder != SNAPSHOTS, key))
    more = next((found for key in keys if (found := _more(context, exited.ranks, key)) is not None), None)
    if more is None:
        return []
    alone = len(more.ranks) < len(more.ended)
    if more.new and (more.again or more.chances or alone):
        return [_extra(context, exited, more)]
    if alone and not more.again and _next_round(context, more):
        return [_another_round(context, exited, more)]
    return []


def _more(context: Context, exited: tuple[int, ...], key: GroupKey) -> _More | None:
    lines = context.survey.groups[key].lines
    ended = tuple(rank for rank in exited if rank in lines)
    waiting = tuple(sorted(rank for rank in lines if rank not in exited))
    lengths = [{lines[rank].issued for rank in side} for side in (ended, waiting)]
    if not all(len(one) == 1 for one in lengths) or set(exited) & set(context.survey.members(key)) - set(ended):
        return None
    by = lengths[1].pop() - lengths[0].pop()
    if not 0 < by <= _LONGEST:
        return None
    ours, theirs = context.reading.calls(waiting[0], key), context.reading.calls(ended[0], key)
    start = max(ours[0].seq, theirs[0].seq) if ours and theirs else 0
    ours, theirs = ([call for call in calls if call.seq >= start] for calls in (ours, theirs))
    if not theirs or len(ours) != len(theirs) + by or not all(call.stack for call in (*ours, *theirs)):
        return None
    mine, other = [on_path(call) for call in ours], [on_path(call) for call in theirs]
    at = next((number for number, one in enumerate(other) if mine[number] != one), len(other))
    if mine[at + by :] != other[at:]:
        return _by_chance(waiting, ended, ours, theirs)
    there = theirs[min(at, len(theirs) - 1)]
    new = mine[at] not in set(other)
    return _More(waiting, ended, tuple(ours[at : at + by]), there, ours[-1], len(other) - at, new)


def _by_chance(waiting: tuple[int, ...], ended: tuple[int, ...], ours: list[Call], theirs: list[Call]) -> _More | None:
    """The last calls come from a line whose earlier calls met those of other lines, and fitted them by chance.

    So they do where DDP's buffers are sent from the first forward pass after a step: rank 0's evaluation, or the next
    step of the others.
    """
    if any(one.wire != other.wire for one, other in zip(ours, theirs, strict=False)):
        return None
    mine, other = [on_path(call) for call in ours], [on_path(call) for call in theirs]
    extra = ours[len(theirs) :]
    new = not set(mine[len(theirs) :]) & set(other)
    fits = [(one, met) for one, met in zip(mine, other, strict=False) if one != met]
    chances = sum(one == mine[-1] for one, _ in fits)
    if not (new and chances) or 2 * len(fits) > len(other):  # Ranks that share no path are not to be compared by it.
        return None
    return _More(waiting, ended, tuple(extra), theirs[-1], ours[-1], 0, True, chances)


def _next_round(context: Context, more: _More) -> bool:
    """Whether those that ended went through rounds of equal calls, and the call that is more begins another one."""
    calls = context.reading.calls(more.ended[0], more.there.key)
    tokens, begins = [on_path(call) for call in calls], on_path(more.extra[0])
    prediction = predict(tokens, begins)
    return prediction is not None and prediction.whole


def _extra(context: Context, exited: Finding, more: _More) -> Finding:
    first, who, ended = more.extra[0], say.ranks(more.ranks), say.ranks(more.ended)
    rest = f" and {len(more.extra) - 1} more" if len(more.extra) > 1 else ""
    again = f" All {more.again} later calls fit again, {len(more.extra)} earlier." if more.again else ""
    if more.chances:
        again = f" {counted(more.chances, 'earlier call')} from there fitted other calls of {ended} by chance."
    wait = (
        ""
        if more.pending is first or more.chances
        else f" {say.sentence(who)} now {say.verb(more.ranks, 'waits', 'wait')} in "
    )
    wait += f"{say.call(more.pending)}, and the others ended in order." if wait else ""
    where = f"{first.site.file}:{first.site.line}" if first.site else f"position {first.seq}"
    found = _finding(context, exited, more)
    return replace(
        found,
        cause=_CONDITIONAL,
        summary=(
            f"Only {who} {say.verb(more.ranks, 'calls', 'call')} {say.call(first)}{rest}; {ended} never "
            f"{say.verb(more.ended, 'does', 'do')}.{again}{wait}"
        ),
        confidence=0.95 if more.again else 0.85 if more.chances else 0.8,
        remedies=say.remedies(
            context.evidence,
            f"take the condition off {where}, so that all ranks call {first.text} or none",
            "a collective that only some ranks call meets another one of their peers, or none",
        ),
        measured=f"{len(more.extra)} more than on {ended}; {more.again} later calls fit",
    )


def _another_round(context: Context, exited: Finding, more: _More) -> Finding:
    who = say.ranks(more.ranks)
    found = _finding(context, exited, more)
    return replace(
        found,
        cause=_UNEVEN,
        summary=(
            f"{say.sentence(who)} {say.verb(more.ranks, 'goes', 'go')} on with another round: "
            f"{say.call(more.extra[0])}, while {say.ranks(more.ended)} ended in order after "
            f"{say.call(more.there)}."
        ),
        confidence=0.7,
        remedies=say.remedies(
            context.evidence,
            "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches)",
            "each rank must run the loop equally often",
        ),
        measured=f"{len(more.extra)} calls more than on the {len(more.ended)} ranks that ended",
    )


def _finding(context: Context, exited: Finding, more: _More) -> Finding:
    """What both kinds share."""
    first, rank, other = more.extra[0], more.ranks[0], more.ended[0]
    last = "made" if more.again else "ended after"
    details = {rank: f"#{first.seq} is {first.text}", other: f"{last} {more.there.text} (#{more.there.seq})"}
    return replace(
        exited,
        ranks=more.ranks,
        victims=more.ended,
        group=say.group(context.survey, first.key),
        position=first.seq,
        step=first.step,
        where=(*say.where(rank, first), *say.where(other, more.there, details[other])),
        evidence=(*say.flight(context.survey, details), *exited.evidence),
    )
